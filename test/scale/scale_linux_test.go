package scale

import (
	"fmt"
	"os/exec"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"

	"github.com/usherproxy/usher/test/lab"
)

// target holds the requirements for one portal mode.
type target struct {
	portal string
	start  time.Duration // until all portals are open
	added  time.Duration // until an added Service is reachable
	flush  []string      // command that removes all rules
}

var targets = []target{
	{"nftables", 3 * time.Second, 20 * time.Millisecond, []string{"nft", "flush", "ruleset"}},
	{"iptables", 6 * time.Second, 300 * time.Millisecond, []string{"iptables", "-t", "nat", "-F"}},
	{"address", 6 * time.Second, 20 * time.Millisecond, []string{"ip", "route", "flush", "table", "local", "proto", "117"}},
}

const (
	maxResident = 250 // MiB
	// maxBusyResident is the limit before garbage has been collected.
	maxBusyResident = 300
	minCRR          = 0.9
	// These are the limits on a busy machine. While more programs want to run than there are CPUs, the two sides of
	// the comparison do not meet the same load.
	minNoisyCRR, minBusyCRR = 0.8, 0.4
	// repairTime is the maximum time from the kernel's change event for removed rules to their repair; see README.
	repairTime = time.Second
	// patience allows for a SYN that is retransmitted on a busy machine.
	patience = 20 * time.Second
)

var _ = Describe("10,000 service ports with 10 endpoints each", func() {
	for _, t := range targets {
		Describe("with the "+t.portal+" portal", Ordered, func() { specs(t) })
	}
})

func specs(t target) {
	var (
		l    *lab.Lab
		pod  *lab.Dialer
		dir  string
		u    *usher
		last = vip(many - 1)
	)
	BeforeAll(func() {
		if _, err := exec.LookPath(t.flush[0]); err != nil {
			Skip("needs " + t.flush[0])
		}
		l = lab.New()
		startBackends(l.Pods)
		pod = l.Pods.NewDialer(loadClients)
		dir = serve(many)
		u = start(l.Node, dir, t.portal)
		DeferCleanup(func() { u.end() }) // the last process
	})

	It("are served within the target time after the start", func() {
		read := u.log("Manifests read").Time
		portals := u.served().Sub(read)
		Expect(connectAndAsk(pod, last, patience)).To(Succeed())
		figure("%s: portals open %.2f s after the manifests were read, %.2f s after the start (target %s)", t.portal,
			portals.Seconds(), u.served().Sub(u.began).Seconds(), t.start)
		Expect(portals).To(BeNumerically("<", slack()*t.start))
	})

	It("fit into the target memory", func() {
		// usher frees the memory for reading manifests soon after the start; until then its memory shrinks.
		before := u.resident()
		Eventually(func() bool {
			now := u.resident()
			defer func() { before = now }()
			return now <= maxResident && now >= before
		}).WithTimeout(10*time.Second).WithPolling(time.Second).Should(BeTrue(), func() string {
			return fmt.Sprintf("%.0f MiB are resident", before)
		})
		figure("%s: %.0f MiB resident after the start (target %d MiB)", t.portal, u.resident(), maxResident)
	})

	It("allow a client to reach an added Service within the target time", func() {
		var afterChange, afterWrite []time.Duration
		for i := many; i < many+10; i++ {
			written := time.Now()
			add(dir, i)
			Eventually(func() error { return connectAndAsk(pod, vip(i), 5*time.Millisecond) }).
				WithTimeout(10 * time.Second).WithPolling(time.Millisecond).Should(Succeed())
			reached := time.Now()
			afterWrite = append(afterWrite, reached.Sub(written))
			afterChange = append(afterChange, reached.Sub(u.log("Manifests changed").Time))
		}
		slices.Sort(afterChange)
		slices.Sort(afterWrite)
		median := afterChange[len(afterChange)/2]
		figure("%s: a Service that is added is reached after %s (median of 10, worst %s; target %s); after its file was written: %s", t.portal,
			median.Round(100*time.Microsecond), afterChange[9].Round(100*time.Microsecond), t.added, afterWrite[5].Round(time.Millisecond))
		Expect(median).To(BeNumerically("<", slack()*t.added))
	})

	It("do not slow down connections compared with a single service port", func() {
		alone := lab.New()
		startBackends(alone.Pods)
		DeferCleanup(start(alone.Node, serve(1), t.portal).end)
		clients := alone.Pods.NewDialer(4)
		perSecond := func(d *lab.Dialer, vip string, lasts time.Duration) float64 {
			GinkgoHelper()
			n, err := rate(d, 4, vip, lasts)
			Expect(err).NotTo(HaveOccurred())
			return n
		}
		// Until the trace and the pools are full.
		perSecond(clients, vip(0), time.Second)
		perSecond(pod, last, time.Second)
		const rounds = 10
		var one, ofMany float64
		for range rounds { // alternating, so that both meet the same machine load
			one += perSecond(clients, vip(0), 250*time.Millisecond) / rounds
			ofMany += perSecond(pod, last, 250*time.Millisecond) / rounds
		}
		figure("%s: %.0f connections a second through the last of 10,000, %.0f through the only one: %.2f (target %.1f)", t.portal, ofMany, one, ofMany/one, minCRR)
		least := minNoisyCRR
		if busy() {
			least = minBusyCRR
		}
		Expect(ofMany / one).To(BeNumerically(">=", least))
	})

	It("still fit into memory after changes and connections", func() {
		// usher frees the memory of a burst afterwards, but leaves enough time between frees that they cost at most 1%
		// of a CPU.
		Eventually(u.resident).WithTimeout(time.Minute).WithPolling(time.Second).Should(BeNumerically("<=", maxBusyResident))
		figure("%s: %.0f MiB resident after changes and connections (target %d MiB)", t.portal, u.resident(), maxResident)
	})

	It("are handed over at 500 new connections a second: none fails or is reset", func() {
		open, err := pod.Dial("", last, patience)
		Expect(err).NotTo(HaveOccurred())
		defer open.Close()
		Expect(pingPong(open)).To(Succeed())
		traffic := startLoad(pod, last, 500, patience)
		Eventually(traffic.count).WithTimeout(30 * time.Second).Should(BeNumerically(">", 500))
		old := u
		DeferCleanup(old.end)
		u = start(l.Node, dir, t.portal, "--take-over")
		Eventually(old.Err).WithTimeout(30 * time.Second).Should(gbytes.Say("has taken over"))
		before := traffic.count()
		Eventually(traffic.count).WithTimeout(30 * time.Second).Should(BeNumerically(">", before+500))
		made, failed := traffic.end()
		figure("%s: %d of %d connections failed in a handover (target 0)", t.portal, len(failed), made)
		Expect(failed).To(BeEmpty())
		Expect(pingPong(open)).To(Succeed(), "an open connection continues")
		open.Close()
		Eventually(old).WithTimeout(time.Minute).Should(gexec.Exit(0))
	})

	It("fail after kill -9 only while no process serves", func() {
		traffic := startLoad(pod, last, 500, 5*time.Second)
		Eventually(traffic.count).WithTimeout(30 * time.Second).Should(BeNumerically(">", 500))
		killed := u.killed()
		u = start(l.Node, dir, t.portal)
		before := traffic.count()
		Eventually(traffic.count).WithTimeout(30 * time.Second).Should(BeNumerically(">", before+500))
		made, failed := traffic.end()
		figure("%s: killed and started again: %d of %d connections failed in the %.1f s until it served (target: none but in that time)", t.portal,
			len(failed), made, u.served().Sub(killed).Seconds())
		if t.portal == "address" { // the others drop SYNs meanwhile, which clients repeat
			Expect(failed).NotTo(BeEmpty())
		}
		for _, f := range failed {
			Expect(f.ended).To(BeTemporally(">=", killed), "%s", f)
			Expect(f.began).To(BeTemporally("<=", u.served()), "%s", f)
		}
	})

	It("recover each time that all rules are flushed under load", func() {
		const times = 3
		traffic := startLoad(pod, last, 500, time.Second)
		var flushed []time.Time
		ticker := time.NewTicker(3 * time.Second)
		defer ticker.Stop()
		for range times {
			<-ticker.C
			flushed = append(flushed, time.Now())
			l.Node.Output(t.flush[0], t.flush[1:]...)
		}
		<-ticker.C
		made, failed := traffic.end()
		var longest time.Duration
		var late []failure
		due := 2 * repairTime
		for _, f := range failed {
			after := -time.Duration(1)
			for _, at := range flushed {
				if !f.ended.Before(at) {
					after = max(0, f.began.Sub(at))
				}
				if f.began.Before(at) {
					break
				}
			}
			if after < 0 || after >= due {
				late = append(late, f)
				continue
			}
			longest = max(longest, after)
		}
		// A repair that is 0.1 s late has 50 of them.
		Expect(len(late)).To(BeNumerically("<=", made/1000), "begun before the first flush or after repair was due: %v", late)
		figure("%s: rules flushed %d times, every 3 s: %d of %d connections failed; the last of them was begun %s after a flush (target %s)", t.portal,
			times, len(failed), made, longest.Round(time.Millisecond), repairTime)
		Expect(connectAndAsk(pod, last, patience)).To(Succeed())
	})
}
