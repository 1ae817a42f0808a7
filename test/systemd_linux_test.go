package test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/test/lab"
)

// systemd runs a unit as systemd does: sd_notify(3), the file descriptor store of sd_pid_notify_with_fds(3),
// sd_listen_fds(3), sd_watchdog_enabled(3).
type systemd struct {
	ns       *lab.Namespace
	settings map[string]string
	program  string
	socket   *net.UnixConn
	log      *gbytes.Buffer
	ended    chan syscall.WaitStatus

	ready, beats atomic.Int64
	mu           sync.Mutex
	main         int // written with mu, by the test
	store        map[string][]int
	said         []string
}

// playSystemd reads the unit file that usher ships.
func playSystemd(ns *lab.Namespace, program, flags string) *systemd {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join(root(), "deploy", "systemd", "usher.service"))
	Expect(err).NotTo(HaveOccurred())
	s := &systemd{ns: ns, settings: map[string]string{}, program: program, log: gbytes.NewBuffer(), store: map[string][]int{}}
	for line := range strings.Lines(string(text)) {
		if name, value, is := strings.Cut(strings.TrimSpace(line), "="); is && !strings.HasPrefix(line, "#") {
			s.settings[name] = value
		}
	}
	Expect(s.settings["Type"]).To(Equal("notify"))
	Expect(s.settings["KillMode"]).To(Equal("mixed"))
	Expect(s.settings["NotifyAccess"]).To(Equal("main"))
	s.settings["ExecStart"] = strings.ReplaceAll(strings.ReplaceAll(s.settings["ExecStart"], "/usr/local/bin/usher", program), "$USHER_FLAGS", flags)
	s.socket, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(GinkgoT().TempDir(), "notify"), Net: "unixgram"})
	Expect(err).NotTo(HaveOccurred())
	raw, err := s.socket.SyscallConn()
	Expect(err).NotTo(HaveOccurred())
	Expect(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1) })).To(Succeed())
	Expect(err).NotTo(HaveOccurred())
	go s.listen()
	DeferCleanup(func() {
		s.socket.Close()
		for _, pid := range append(lab.Children(s.main), s.main) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		GinkgoWriter.Println(string(s.log.Contents()))
		Expect(string(s.log.Contents())).NotTo(ContainSubstring("DATA RACE"))
	})
	return s
}

// start starts the main process with the stored descriptors and waits until it is ready.
func (s *systemd) start() {
	GinkgoHelper()
	out, in, err := os.Pipe()
	Expect(err).NotTo(HaveOccurred())
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := out.Read(buf)
			if err != nil {
				return
			}
			_, _ = s.log.Write(buf[:n]) // a buffer; no errors
		}
	}()
	s.mu.Lock()
	files := []uintptr{0, in.Fd(), in.Fd()}
	var names []string
	for name, fds := range s.store {
		for _, fd := range fds {
			files, names = append(files, uintptr(fd)), append(names, name)
		}
	}
	s.mu.Unlock()
	was := s.ready.Load()
	shell, err := exec.LookPath("sh")
	Expect(err).NotTo(HaveOccurred())
	watchdog, err := strconv.Atoi(s.settings["WatchdogSec"])
	Expect(err).NotTo(HaveOccurred())
	s.ns.Do(func() (err error) {
		s.mu.Lock() // s.main is set before the first message is handled
		defer s.mu.Unlock()
		// Only the process itself knows its PID.
		s.main, err = syscall.ForkExec(shell, []string{"sh", "-c", "export LISTEN_PID=$$ WATCHDOG_PID=$$; exec " + s.settings["ExecStart"]}, &syscall.ProcAttr{
			Files: files,
			Env: append(os.Environ(), "NOTIFY_SOCKET="+s.socket.LocalAddr().String(), "LISTEN_FDS="+strconv.Itoa(len(names)),
				"LISTEN_FDNAMES="+strings.Join(names, ":"), fmt.Sprintf("WATCHDOG_USEC=%d", watchdog*int(time.Second/time.Microsecond)/20)),
		})
		return err
	})
	in.Close()
	pid, ended := s.main, make(chan syscall.WaitStatus, 1)
	s.ended = ended
	go func() {
		var status syscall.WaitStatus
		_, _ = syscall.Wait4(pid, &status, 0, nil)
		ended <- status
	}()
	Eventually(s.ready.Load).WithTimeout(90 * time.Second).Should(BeNumerically(">", was)) // a busy machine takes 30 s
}

// restart is 'systemctl restart'.
func (s *systemd) restart() {
	GinkgoHelper()
	Expect(syscall.Kill(s.main, syscall.SIGTERM)).To(Succeed())
	Eventually(s.ended).WithTimeout(40 * time.Second).Should(Receive())
	s.start()
}

// reload is 'systemctl reload'.
func (s *systemd) reload() {
	GinkgoHelper()
	was := s.ready.Load()
	Expect(exec.Command("sh", "-c", fmt.Sprintf("MAINPID=%d; %s", s.main, s.settings["ExecReload"])).Run()).To(Succeed())
	Eventually(s.ready.Load).WithTimeout(90 * time.Second).Should(BeNumerically(">", was)) // a busy machine takes 30 s
}

func (s *systemd) listen() {
	text, oob := make([]byte, 4096), make([]byte, 4096)
	for {
		n, oobn, _, _, err := s.socket.ReadMsgUnix(text, oob)
		if err != nil {
			return
		}
		messages, err := unix.ParseSocketControlMessage(oob[:oobn])
		if err != nil {
			return
		}
		var fds []int
		pid := 0
		for i := range messages {
			if who, err := unix.ParseUnixCredentials(&messages[i]); err == nil {
				pid = int(who.Pid)
			}
			if more, err := unix.ParseUnixRights(&messages[i]); err == nil {
				fds = append(fds, more...)
			}
		}
		s.hear(pid, string(text[:n]), fds)
	}
}

func (s *systemd) hear(pid int, text string, fds []int) {
	defer GinkgoRecover()
	s.mu.Lock()
	defer s.mu.Unlock()
	values := map[string]string{}
	for line := range strings.SplitSeq(text, "\n") {
		name, value, _ := strings.Cut(line, "=")
		values[name] = value
	}
	s.said = append(s.said, text)
	for _, fd := range fds {
		unix.CloseOnExec(fd)
	}
	name := values["FDNAME"]
	if values["FDSTORE"] == "1" && pid == s.main {
		s.store[name] = append(s.store[name], fds...)
		fds = nil
	}
	if values["FDSTOREREMOVE"] == "1" {
		fds = append(fds, s.store[name]...)
		delete(s.store, name)
	}
	for _, fd := range fds {
		unix.Close(fd)
	}
	if values["WATCHDOG"] == "1" {
		s.beats.Add(1)
	}
	if values["READY"] == "1" {
		Expect(pid).To(Equal(s.main))
		s.ready.Add(1)
	}
}

// stored returns the number of descriptors under each name.
func (s *systemd) stored() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	count := map[string]int{}
	for name, fds := range s.store {
		count[name] = len(fds)
	}
	return count
}

var _ = Describe("under systemd, with the shipped unit,", func() {
	var (
		l        *lab.Lab
		s        *systemd
		web      service
		traffic  *callers
		programs string
	)
	BeforeEach(func() {
		l = lab.New()
		dir := manifestsDir()
		web = service{name: "web", clusterIP: clusterIP, port: 80, endpoints: []netip.AddrPort{startBackend(l.Pods, lab.Pod(1), 8080).addr}}
		web.write(dir)
		service{name: "dns", clusterIP: "10.96.0.53", port: 53, protocol: "UDP", endpoints: web.endpoints}.write(dir)
		programs = filepath.Join(GinkgoT().TempDir(), "usher")
		install(usherBinary, programs)
		s = playSystemd(l.Node, programs, "--manifests="+dir+" --portal=nftables --log-format=text")
		s.start()
		traffic = call(l.Pods.NewDialer(50), 200, web.vip())
	})
	flow := func(more int64) {
		GinkgoHelper()
		before := traffic.made.Load()
		Eventually(traffic.made.Load).WithTimeout(time.Minute).Should(BeNumerically(">", before+more))
	}
	ends := func() {
		GinkgoHelper()
		flow(200)
		lost := traffic.lost.Load()
		traffic.end()
		Expect(lost).To(BeZero())
	}

	It("a restart fails no connection; usher sends watchdog notifications and its status", func() {
		Eventually(s.stored).WithTimeout(time.Minute).Should(And(HaveKeyWithValue("lock", 1), HaveKeyWithValue("S1", BeNumerically(">=", 1)), HaveKeyWithValue("S2", BeNumerically(">=", 1))))
		for range 3 {
			flow(200)
			s.restart()
		}
		Eventually(s.stored).WithTimeout(time.Minute).Should(HaveLen(3), "the same as before")
		ends()

		By("sending watchdog notifications and the status")
		before := s.beats.Load()
		Eventually(s.beats.Load).WithTimeout(30 * time.Second).Should(BeNumerically(">=", before+3))
		Expect(syscall.Kill(s.main, syscall.SIGTERM)).To(Succeed())
		Eventually(s.ended).WithTimeout(40 * time.Second).Should(Receive(Equal(syscall.WaitStatus(0))))
		s.mu.Lock()
		defer s.mu.Unlock()
		Expect(s.said).To(ContainElement(ContainSubstring("STATUS=Serving 2 Services through portal nftables")))
		Expect(s.said).To(ContainElement("STOPPING=1\nEXTEND_TIMEOUT_USEC=40000000"), "30 s to drain, and 10 s more")
	})

	It("a reload starts the newly installed program, and fails no connection", func() {
		for range 3 {
			flow(200)
			install(usherBinary, programs)
			s.reload()
		}
		flow(200)
		s.restart()
		ends()
	})

	It("a killed keeper recovers from the file descriptor store", func() {
		flow(200)
		usher := lab.Children(s.main)
		Expect(usher).To(HaveLen(1))
		Expect(syscall.Kill(s.main, syscall.SIGKILL)).To(Succeed())
		Eventually(s.ended).WithTimeout(30 * time.Second).Should(Receive())
		Expect(syscall.Kill(usher[0], syscall.SIGKILL)).To(Succeed()) // as systemd kills remaining processes
		s.start()
		flow(400)
		traffic.end()
	})
})
