package test

import (
	"bytes"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/creack/pty"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("Closing the terminal", func() {
	It("stops usher demo and usher run, which leave no rules or routes behind", func() {
		// If nohup started this test, usher would inherit the ignored SIGHUP. Caught here, exec(3) resets it to the default.
		hangups := make(chan os.Signal, 1)
		signal.Notify(hangups, syscall.SIGHUP)
		defer signal.Stop(hangups)
		l, dir := lab.New(), manifestsDir()
		web := service{name: "web", clusterIP: "10.96.0.10", port: 80, endpoints: []netip.AddrPort{netip.AddrPortFrom(lab.Pod(1), 8080)}}
		web.write(dir)
		before := lab.State(l.Node)
		for _, c := range []struct {
			args  []string
			ready string
		}{
			{[]string{"run", "--manifests", dir, "--portal=nftables"}, "10.96.0.10:80"},
			{[]string{"run", "--manifests", dir, "--portal=address"}, "10.96.0.10:80"},
			{[]string{"demo", "--admin-address=", "--portal=iptables"}, "Ctrl-C ends the demo"},
		} {
			cmd := exec.Command(usherBinary, c.args...)
			races := filepath.Join(GinkgoT().TempDir(), "race")
			cmd.Env = append(os.Environ(), "GORACE=log_path="+races) // output to the terminal is lost
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			var terminal *os.File
			l.Node.Do(func() error {
				file, tty, err := pty.Open()
				if err != nil {
					return err
				}
				defer tty.Close()
				terminal, cmd.Stdin, cmd.Stdout, cmd.Stderr = file, tty, tty, tty
				return cmd.Start()
			})
			ended, ready := make(chan error, 1), make(chan struct{})
			go func() { ended <- cmd.Wait() }()
			DeferCleanup(func() { _ = cmd.Process.Kill() })
			go func() { // and then stops: a terminal is not closed while it is read
				var seen []byte
				for !bytes.Contains(seen, []byte(c.ready)) {
					part := make([]byte, 4096)
					n, err := terminal.Read(part)
					if err != nil {
						return
					}
					seen = append(seen, part[:n]...)
				}
				close(ready)
			}()
			Eventually(ready).WithTimeout(30*time.Second).Should(BeClosed(), "%v", c.args)
			Expect(lab.State(l.Node)).NotTo(Equal(before), "%v", c.args)
			Expect(terminal.Close()).To(Succeed())
			var how error
			Eventually(ended).WithTimeout(30*time.Second).Should(Receive(&how), "%v", c.args)
			found, _ := filepath.Glob(races + ".*")
			for _, file := range found {
				text, _ := os.ReadFile(file)
				AddReportEntry("data race", string(text))
			}
			Expect(how).NotTo(HaveOccurred(), "%v", c.args)
			Expect(lab.State(l.Node)).To(Equal(before), "%v", c.args)
		}
	})
})
