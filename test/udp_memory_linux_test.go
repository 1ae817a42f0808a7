package test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"

	"github.com/usherproxy/usher/test/lab"
)

// The race detector needs extra memory for each address that a program ever touched, so these specs run usher without
// it.
var _ = Describe("The memory and descriptors that UDP sessions use", serial, func() {
	It("stay bounded with 100,000 clients of one datagram each, and are freed when idle", func() {
		const (
			some     = 10_000 // enough to fill all fixed-size buffers, such as the trace
			clients  = 100_000
			workers  = 8
			sessions = 2000 // of the service port: half of all
		)
		l := lab.New()
		pod, node := l.Pods.NewDialer(workers), l.Node.NewDialer(2)
		dns := service{name: "dns", clusterIP: clusterIP, port: 53, protocol: "UDP",
			endpoints: []netip.AddrPort{startEcho(l.Pods, lab.Pod(1))}}
		dir := manifestsDir()
		dns.write(dir)
		plain, err := releasedUsher()
		Expect(err).NotTo(HaveOccurred())
		u := launch(l.Node, exec.Command(plain, "run", "--manifests", dir, "--portal=address", "--log-format=text",
			"--udp-idle-timeout=3s", "--max-udp-sessions="+strconv.Itoa(2*sessions)), dir)
		Eventually(u.Err).WithTimeout(time.Minute).Should(gbytes.Say("Serving"))
		pid := u.Command.Process.Pid
		open := sample(node, "usher_udp_sessions_open")
		var top, topFiles atomic.Int64
		look := func() {
			top.Store(max(top.Load(), lab.Resident(pid)))
			topFiles.Store(max(topFiles.Load(), int64(descriptors(pid))))
		}
		flood := func(clients int) {
			var wg sync.WaitGroup
			for worker := range workers {
				wg.Go(func() {
					defer GinkgoRecover()
					for i := worker; i < clients; i += workers {
						c, err := pod.DialUDP(lab.Pod(1+i%80).String(), dns.vip())
						Expect(err).NotTo(HaveOccurred())
						_, err = c.Write([]byte("x"))
						Expect(err).NotTo(HaveOccurred())
						c.Close()
						if worker == 0 && i%(workers*500) == 0 {
							look()
						}
					}
				})
			}
			wg.Wait()
			look()
		}
		// settled waits until no session is left and memory is below most, and returns the memory.
		settled := func(most int64) (now int64) {
			Eventually(open).WithTimeout(15 * time.Second).Should(BeZero())
			Eventually(func() int64 { now = lab.Resident(pid); return now }).WithTimeout(time.Minute).Should(BeNumerically("<", most))
			return now
		}

		fresh, files := lab.Resident(pid), descriptors(pid)
		flood(some)
		before := settled(fresh + 16<<20)
		flood(clients)
		// A datagram may be lost while the listener's buffer is full.
		Eventually(func() (netip.AddrPort, error) { return askWho(pod, "", dns.vip()) }).WithTimeout(time.Minute).
			Should(Equal(dns.endpoints[0]), "other clients are served meanwhile")
		Expect(topFiles.Load()).To(BeNumerically("<=", files+sessions+20))
		Expect(top.Load() - before).To(BeNumerically("<", 64<<20))
		after := settled(before + 4<<20) // 42 bytes per client
		Expect(descriptors(pid)).To(BeNumerically("<=", files+20))
		AddReportEntry("resident memory", fmt.Sprintf("%.1f MB at first, %.1f MB before, %.1f MB at the top, %.1f MB after", megabytes(fresh), megabytes(before), megabytes(top.Load()), megabytes(after)))
	})
})

func megabytes(n int64) float64 { return float64(n) / (1 << 20) }

// descriptors returns the number of descriptors of a process.
func descriptors(pid int) int {
	GinkgoHelper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	Expect(err).NotTo(HaveOccurred())
	return len(entries)
}
