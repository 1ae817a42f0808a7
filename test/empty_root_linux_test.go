package test

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/test/lab"
)

// usher needs only its program: no libc, neither glibc nor musl, and no other file.
var _ = Describe("In a root file system with only the program,", Ordered, func() {
	var dir string
	var l *lab.Lab
	BeforeAll(func() {
		lab.Long()
		program, err := releasedUsher()
		Expect(err).NotTo(HaveOccurred())
		binary, err := os.ReadFile(program)
		Expect(err).NotTo(HaveOccurred())
		if dir, err = os.MkdirTemp("", "usher-empty-root-"); err != nil {
			Fail(err.Error())
		}
		DeferCleanup(os.RemoveAll, dir)
		Expect(os.Chmod(dir, 0o755)).To(Succeed())
		Expect(os.WriteFile(filepath.Join(dir, "usher"), binary, 0o755)).To(Succeed())
	})
	BeforeEach(func() { l = lab.New() })
	// in runs usher there as a user, and returns its exit code and its output.
	in := func(user uint32, input string, args ...string) (int, string) {
		GinkgoHelper()
		cmd := exec.Command("/usher", args...)
		cmd.Dir, cmd.Env, cmd.Stdin = "/", []string{}, strings.NewReader(input)
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: dir, Credential: &syscall.Credential{Uid: user, Gid: user}}
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		l.Node.Start(cmd)
		ended := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		defer ended.Stop()
		_ = cmd.Wait() // ProcessState has the result
		return cmd.ProcessState.ExitCode(), out.String()
	}
	onlyUsher := func() {
		GinkgoHelper()
		entries, err := os.ReadDir(dir)
		Expect(err).NotTo(HaveOccurred())
		Expect(entries).To(HaveLen(1), "no other file is left")
	}

	It("usher needs no loader and no library", func() {
		f, err := elf.Open(filepath.Join(dir, "usher"))
		Expect(err).NotTo(HaveOccurred())
		defer f.Close()
		for _, p := range f.Progs {
			Expect(p.Type).NotTo(BeElementOf(elf.PT_INTERP, elf.PT_DYNAMIC))
		}
	})

	DescribeTable("demo --once works", func(user uint32) {
		code, out := in(user, "", "demo", "--once")
		Expect(code).To(BeZero(), out)
		Expect(out).To(And(ContainSubstring("requests had the expected outcome"), ContainSubstring("The manifests are in memory only"),
			MatchRegexp("Without /proc only portal none is available; using it.*/proc/thread-self/net/unix")))
		onlyUsher()
	}, Entry("as root", uint32(0)), Entry("as a non-root user", uint32(65534)))

	It("demo --once works with each portal that needs no other program, if /proc exists", func() {
		Expect(os.Mkdir(filepath.Join(dir, "proc"), 0o755)).To(Succeed())
		DeferCleanup(os.Remove, filepath.Join(dir, "proc"))
		Expect(unix.Mount("proc", filepath.Join(dir, "proc"), "proc", 0, "")).To(Succeed())
		DeferCleanup(unix.Unmount, filepath.Join(dir, "proc"), 0)
		for _, portal := range []string{"nftables", "address", "auto"} {
			code, out := in(0, "", "demo", "--once", "--portal="+portal)
			Expect(code).To(BeZero(), out)
			Expect(out).To(ContainSubstring("requests had the expected outcome"))
		}
		code, out := in(0, "", "demo", "--once", "--portal=iptables")
		Expect(code).To(Equal(1))
		Expect(out).To(ContainSubstring("install the iptables package"))
	})

	It("the other commands work or report what is missing", func() {
		code, out := in(0, service{name: "web", clusterIP: "10.96.0.10", port: 80}.yaml(), "check", "-")
		Expect(code).To(BeZero(), out)
		Expect(out).To(ContainSubstring("1 Service with 1 port, 0 errors"))
		for _, c := range []struct {
			args, says string
			code       int
		}{
			{"version", "linux/", 0},
			{"get services", "cannot connect to usher at 127.0.0.1:10249: connection refused", 1},
			{"get services --admin-address=usher.example:10249", "lookup usher.example", 1}, // without resolv.conf(5)
			{"run --portal=nftables --manifests=/", "/proc/thread-self/net/unix: no such file or directory; --portal=none needs no lock", 1},
			{"run --kubeconfig=/none", "kubeconfig /none: stat /none: no such file or directory", 1},
			{"run --portal=none --keeper --manifests=/", "/proc/self/exe: no such file", 1},
			{"exec --manifests=/ -- /usher version", "exec is a command of kubectl-usher", 2},
		} {
			code, out := in(0, "", strings.Fields(c.args)...)
			Expect(code).To(Equal(c.code), "%s: %s", c.args, out)
			Expect(out).To(ContainSubstring(c.says), c.args)
		}
		onlyUsher()
	})
})
