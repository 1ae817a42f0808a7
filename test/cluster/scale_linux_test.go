package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/usherproxy/usher/test/lab"
)

// These specs check requirements for clusters with many Services, on the release build.
var _ = Describe("1,000 Services with 10 endpoints each", Ordered, func() {
	const many = 1000
	var (
		c        *cluster
		u        *usher
		services []*corev1.Service
	)
	BeforeAll(func() {
		c = newCluster()
		for n := 1; n <= 10; n++ {
			c.startPod("many", n, here)
		}
		u = c.releasedUsher()
	})

	It("created at once, are all reachable", func() {
		began := time.Now()
		services = make([]*corev1.Service, many)
		each(many, func(i int) error {
			var err error
			services[i], err = c.tryService(fmt.Sprintf("many-%d", i), func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "many"} })
			return err
		})
		created := time.Since(began)
		Eventually(func() int {
			list, err := c.api.DiscoveryV1().EndpointSlices(c.namespace).List(context.Background(), metav1.ListOptions{ResourceVersion: "0"})
			Expect(err).NotTo(HaveOccurred())
			return len(list.Items)
		}).WithTimeout(time.Minute).WithPolling(100 * time.Millisecond).Should(Equal(many))
		written := time.Since(began)
		for _, svc := range services {
			Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).Should(Not(BeZero()), svc.Name)
		}
		AddReportEntry("1,000 Services", fmt.Sprintf("created after %s, all slices written after %s, all reachable after %s", created, written, time.Since(began)))
	})

	It("leave a new Service reachable within 200 ms of writing its EndpointSlice", func() {
		server := serve(c.Pods, netip.AddrPortFrom(lab.Pod(20), 8080))
		// Other suites run at the same time. While they compute, each step waits for a processor, so the best round of two
		// minutes counts.
		quickest, end := time.Hour, time.Now().Add(2*time.Minute)
		for round := 0; time.Now().Before(end); round++ {
			var took []time.Duration
			for i := range 10 {
				svc := c.service(fmt.Sprintf("late-%d-%d", round, i), noSelector)
				slice := c.slice(svc.Name, svc.Name, endpoint(lab.Pod(20)))
				began := time.Now() // before the write: the API server's time counts too
				c.write(slice)
				Eventually(impatient(c.pod, vip(svc), 20*time.Millisecond)).WithTimeout(soon).WithPolling(2 * time.Millisecond).Should(Equal(server.addr))
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			AddReportEntry("reachable after its slice was written", fmt.Sprintf("median %s, worst %s", took[len(took)/2], took[len(took)-1]))
			if quickest = min(quickest, took[len(took)/4]); quickest < 200*time.Millisecond {
				break
			}
		}
		Expect(quickest).To(BeNumerically("<", 200*time.Millisecond))
	})

	It("take less than 120 MiB of memory", func() {
		var resident int64
		Eventually(func() int64 { // garbage of earlier specs is freed soon
			resident = lab.Resident(u.Command.Process.Pid)
			return resident
		}).WithTimeout(soon).Should(BeNumerically("<", 120<<20))
		AddReportEntry("resident memory", fmt.Sprintf("%.1f MiB", float64(resident)/(1<<20)))
	})

	It("take less than 1% of a core when idle", func() {
		// Some time after a change, usher reads all rules once. This change by another program makes it do so now.
		c.Node.Output("iptables", "-t", "nat", "-A", "PREROUTING", "-p", "99", "-j", "RETURN")
		for range 2 { // the first check may already have been running
			now := time.Now()
			Eventually(u.lastCheck).WithTimeout(3 * soon).WithPolling(time.Second).Should(BeTemporally(">", now))
		}
		const long = 20 * time.Second
		before := u.cpu()
		over := time.After(long)
		Eventually(over).WithTimeout(long + soon).Should(Receive())
		used := u.cpu() - before
		AddReportEntry("processor", fmt.Sprintf("%s in %s: %.2f %%", used, long, 100*used.Seconds()/long.Seconds()))
		Expect(used).To(BeNumerically("<", long/100)) // usually 0.05 %; up to 0.4 % with Go's GC every 2 minutes on a loaded machine
	})

	It("deleted at once, are all removed without affecting other Services", func() {
		svc := c.service("stays", noSelector)
		server := serve(c.Pods, netip.AddrPortFrom(lab.Pod(21), 8080))
		c.write(c.slice("stays", "stays", endpoint(lab.Pod(21))))
		Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).Should(Equal(server.addr))
		l := startLoad(c.pod, vip(svc), 50)
		began := time.Now()
		each(many, func(i int) error {
			return c.api.CoreV1().Services(c.namespace).Delete(context.Background(), services[i].Name, metav1.DeleteOptions{})
		})
		Eventually(u.listeners).WithTimeout(2 * time.Minute).WithPolling(200 * time.Millisecond).Should(BeNumerically("<", 50))
		AddReportEntry("1,000 Services gone", time.Since(began).String())
		Expect(l.stop()).To(BeEmpty())
	})
})

// impatient returns a function for Eventually that makes one connection. Its timeout is short, since TCP retransmits a
// SYN that came too early only after 1 s.
func impatient(d *lab.Dialer, vip string, patience time.Duration) func() (netip.AddrPort, error) {
	return func() (netip.AddrPort, error) {
		c, err := d.Dial("", vip, patience)
		if err != nil {
			return netip.AddrPort{}, err
		}
		defer c.Close()
		return readName(c)
	}
}

// each calls f for 0 to n-1, with 20 concurrent calls.
func each(n int, f func(i int) error) {
	GinkgoHelper()
	next, errs := make(chan int), make([]error, n)
	var workers sync.WaitGroup
	for range 20 {
		workers.Go(func() {
			for i := range next {
				errs[i] = f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	workers.Wait()
	Expect(errors.Join(errs...)).To(Succeed())
}

// lastCheck returns the time of usher's last check of its rules.
func (u *usher) lastCheck() (time.Time, error) {
	answer, err := get(u.cluster.node, adminURL+"/api/v1/portals")
	if err != nil {
		return time.Time{}, err
	}
	var portals struct{ LastCheck time.Time }
	err = json.Unmarshal([]byte(answer.Body), &portals)
	return portals.LastCheck, err
}

func (u *usher) cpu() time.Duration { return cpuOf(u.Command.Process.Pid) }

// cpuOf returns the CPU time of a process and of its reaped children. See proc_pid_stat(5): utime, stime, cutime and
// cstime, in hundredths of a second.
func cpuOf(pid int) time.Duration {
	GinkgoHelper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	Expect(err).NotTo(HaveOccurred())
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	total := 0
	for _, field := range fields[11:15] {
		ticks, err := strconv.Atoi(field)
		Expect(err).NotTo(HaveOccurred())
		total += ticks
	}
	return time.Duration(total) * 10 * time.Millisecond
}
