package cluster

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	corev1 "k8s.io/api/core/v1"

	"github.com/usherproxy/usher/test/lab"
)

// child returns the PID of the keeper's usher process.
func (u *usher) child() int {
	GinkgoHelper()
	return lab.Child(u.Command.Process.Pid)
}

var _ = Describe("usher with a keeper", func() {
	It("accepts clients, keeps affinity and follows changes despite repeated SIGKILL", func() {
		c := newCluster()
		for n := 1; n <= 3; n++ {
			serve(c.Pods, netip.AddrPortFrom(lab.Pod(n), 8080))
		}
		three := []netip.Addr{lab.Pod(1), lab.Pod(2), lab.Pod(3)}
		sticky := c.service("sticky", noSelector, func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP })
		web := c.service("web", noSelector)
		for _, name := range []string{"sticky", "web"} {
			c.write(c.slice(name, name, endpoint(three[0]), endpoint(three[1]), endpoint(three[2])))
		}
		u := c.launch(usherRace, "--keeper").serving()
		DeferCleanup(func() { // before the keeper is stopped, which would restart usher
			pid := u.child()
			_ = syscall.Kill(u.Command.Process.Pid, syscall.SIGKILL)
			_ = syscall.Kill(pid, syscall.SIGKILL)
		})
		had := map[string]netip.AddrPort{}
		come := func() {
			for n := 4; n <= 20; n++ {
				client := lab.Pod(n).String()
				e, err := askFrom(c.pod, client, vip(sticky))
				Expect(err).NotTo(HaveOccurred())
				if before, came := had[client]; came {
					Expect(e).To(Equal(before), client)
				}
				had[client] = e
			}
		}
		come()
		for client := range had {
			Eventually(lab.SavedAffinities).WithArguments(u.Command.Process.Pid).WithTimeout(soon).Should(ContainSubstring(string(netip.MustParseAddr(client).AsSlice())), client)
		}
		l := startLoad(c.pod, vip(web), 100)
		underWay := 0 // connections at the crashes
		for round := range 3 {
			l.more(150)
			pid, done := u.child(), l.count()
			Expect(syscall.Kill(pid, syscall.SIGKILL)).To(Succeed())
			underWay += l.started() - done
			Eventually(u.Err).WithTimeout(soon).Should(gbytes.Say("usher exited unexpectedly"))
			u.serving()
			come()
			changed := c.service(fmt.Sprint("new", round), noSelector)
			c.write(c.slice(changed.Name, changed.Name, endpoint(three[round])))
			Eventually(answers(c.pod, vip(changed))).WithTimeout(soon).Should(Equal(netip.AddrPortFrom(three[round], 8080)))
		}
		l.more(50)
		for _, failure := range l.stop() { // a crash may lose connections that usher had accepted, and no others
			if !strings.Contains(failure, "connection reset") { // connect(2) may return this for an accepted connection
				Expect(failure).NotTo(Or(ContainSubstring("dial"), ContainSubstring("timeout")))
			}
		}
		// On a busy machine each connection takes longer, so that more are under way.
		Expect(len(l.failures)).To(BeNumerically("<", 30+underWay), "%v", l.failures)
	})
})
