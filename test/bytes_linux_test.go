package test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("data, with and without urgent bytes,", func() {
	for _, portal := range []string{"iptables", "nftables", "address", "none"} {
		It("arrives through the "+portal+" portal", func() {
			if portal == "iptables" {
				missing("iptables")
			}
			l := lab.New()
			dir := manifestsDir()
			client := l.Pods.NewDialer(4)
			if portal == "none" {
				client = l.Node.NewDialer(4)
			}
			services := []service{{name: "web", clusterIP: clusterIP, port: 80}, {name: "web6", clusterIP: "fd00:10:96::10", port: 80}}
			var listeners []net.Listener
			for n, pod := range []netip.Addr{lab.Pod(1), lab.Pod6(1)} {
				at := netip.AddrPortFrom(pod, 8080)
				listeners = append(listeners, l.Pods.Listen(at.String()))
				services[n].endpoints = []netip.AddrPort{at}
				services[n].write(dir)
			}
			u := startUsher(l.Node, dir, "--portal="+portal)
			for n, s := range services {
				vip := s.vip()
				if portal == "none" {
					var line []string
					Eventually(func() []string {
						_, rest, _ := strings.Cut(string(u.Out.Contents()), "default/"+s.name+" ")
						line = strings.Fields(rest)
						return line
					}).WithTimeout(10 * time.Second).ShouldNot(BeEmpty())
					vip = line[3]
				}
				// With conntrack, a reset can reach the client 15 s late: conntrack probably considers it outside of a
				// full window, and does not translate it.
				resets := portal == "address" || portal == "none"
				lab.CompareBytes(time.Second, resets, func() (near, far *net.TCPConn) {
					near, err := client.Dial("", vip, 10*time.Second)
					Expect(err).NotTo(HaveOccurred())
					Expect(listeners[n].(*net.TCPListener).SetDeadline(time.Now().Add(10 * time.Second))).To(Succeed())
					accepted, err := listeners[n].Accept()
					Expect(err).NotTo(HaveOccurred())
					// Until usher sees that the endpoint accepted, a reset is a failed attempt, and causes a retry.
					Expect(accepted.Write([]byte("x"))).To(Equal(1))
					Expect(near.Read(make([]byte, 1))).To(Equal(1))
					return near, accepted.(*net.TCPConn)
				}, func(lab.Ending) {})
			}
			u.stop()
		})
	}
})

var _ = Describe("usher on a machine with 600 CPUs", func() {
	It("serves Services with fewer than 400 threads", func() {
		l := lab.New()
		dir := manifestsDir()
		b := startBackend(l.Pods, lab.Pod(1), 8080)
		web := service{name: "web", clusterIP: clusterIP, port: 80, endpoints: []netip.AddrPort{b.addr}}
		web.write(dir)
		cmd := exec.Command(usherBinary, "run", "--portal=address", "--manifests="+dir)
		cmd.Env = append(cmd.Environ(), "GOMAXPROCS=600")
		u := launch(l.Node, cmd, dir)
		Eventually(ask).WithArguments(l.Pods.NewDialer(1), web.vip()).WithTimeout(time.Minute).Should(Equal(b.addr)) // on a busy machine
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", u.Command.Process.Pid))
		Expect(err).NotTo(HaveOccurred())
		Expect(len(threads)).To(BeNumerically("<", 400), "64 event loops and the threads of the Go runtime")
		u.stop()
		Expect(string(u.Err.Contents())).NotTo(ContainSubstring("Cannot accept clients"))
	})
})
