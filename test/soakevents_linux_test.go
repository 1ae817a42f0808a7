package test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"golang.org/x/sys/unix"
)

// incident is something that connections may be lost by.
type incident int

const (
	usherKilled incident = iota
	endpointKilled
	rulesGone
	nothingTranslated // the kernel tracks no connections, and packets of those that are open go astray
	noDescriptors
	away    // usher or an endpoint: who sends datagrams may have to ask again
	anyLoss // any of them
)

// Why connections were lost.
const (
	lostWithUsher          = "whose usher was killed"
	lostWithEndpoint       = "whose endpoint was killed"
	lostWithoutRules       = "made while the rules were flushed"
	lostAstray             = "open while no rule made the kernel track connections"
	lostUDPWithoutRules    = "UDP clients who came while the rules were flushed"
	lostWithoutDescriptors = "made or tried while usher had no descriptors left"
)

// incidents are when there were some.
type incidents struct {
	mu      sync.Mutex
	times   [anyLoss][]*soakEvent
	serving atomic.Int64 // the process id of the usher that serves
}

// during notes an incident for as long as f takes.
func (in *incidents) during(kind incident, f func()) {
	now := &soakEvent{at: time.Now()}
	in.mu.Lock()
	in.times[kind] = append(in.times[kind], now)
	in.mu.Unlock()
	f()
	in.mu.Lock()
	now.until = time.Now()
	in.mu.Unlock()
}

// within reports whether there was such an incident in that time.
func (in *incidents) within(kind incident, from, until time.Time) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	for k, times := range in.times {
		for _, t := range times {
			if (k == int(kind) || kind == anyLoss) && !t.at.After(until) && (t.until.IsZero() || !t.until.Before(from)) {
				return true
			}
		}
	}
	return false
}

// disturb makes one event after the other until it is time: all kinds, in an order that
// the seed says, and then again. It leaves all as it was.
func (s *soak) disturb(end time.Time) {
	GinkgoHelper()
	kinds := []func() string{s.killUsher, s.killKeeper, s.killEndpoint, s.rollEndpoints, s.flushRules, s.changeService, s.takeDescriptors}
	for time.Now().Before(end) {
		for _, n := range s.rand.Perm(len(kinds)) {
			<-time.After(time.Duration(200+s.rand.IntN(500)) * time.Millisecond)
			if time.Now().After(end) {
				break
			}
			s.dismiss()
			e := soakEvent{at: time.Now()}
			s.serving.Store(int64(s.kept.child()))
			e.what = kinds[n]()
			e.until = time.Now()
			s.serving.Store(int64(s.kept.child()))
			s.events = append(s.events, e)
		}
	}
	s.dismiss()
	if s.guest.endpoints != nil {
		s.removeGuest()
	}
}

// dismiss ends the endpoints that have left their Services.
func (s *soak) dismiss() {
	for _, e := range s.leaving {
		e.leave()
	}
	s.leaving = nil
}

func (s *soak) family() *soakFamily { return s.families[s.rand.IntN(len(s.families))] }

func (s *soak) killUsher() string {
	GinkgoHelper()
	pid := s.kept.child()
	s.during(away, func() {
		s.during(usherKilled, func() {
			Expect(syscall.Kill(pid, syscall.SIGKILL)).To(Succeed())
			Eventually(s.kept.Err).WithTimeout(30 * time.Second).Should(gbytes.Say("usher ended unexpectedly"))
		})
		Eventually(s.kept.Err).WithTimeout(30 * time.Second).Should(gbytes.Say("Serving"))
	})
	return fmt.Sprintf("kill -9 of usher (process %d); its keeper started another", pid)
}

func (s *soak) killKeeper() string {
	GinkgoHelper()
	pid := s.kept.Command.Process.Pid
	Expect(s.kept.Command.Process.Kill()).To(Succeed())
	s.startKept("--take-over")
	return fmt.Sprintf("kill -9 of the keeper (process %d); another, with its usher, took over", pid)
}

func (s *soak) killEndpoint() string {
	f := s.family()
	e := f.endpoints[s.rand.IntN(len(f.endpoints)-1)]
	dead := time.Duration(100+s.rand.IntN(900)) * time.Millisecond
	s.during(away, func() {
		s.during(endpointKilled, e.die)
		<-time.After(dead) // usher shall meet it dead
		e.listen()
	})
	return fmt.Sprintf("endpoint %s died, and came back after %s", e.at, dead)
}

// rollEndpoints replaces the oldest endpoint of the Services.
func (s *soak) rollEndpoints() string {
	GinkgoHelper()
	f := s.family()
	old, last := f.endpoints[0], f.endpoints[len(f.endpoints)-1]
	last.listen()
	f.endpoints = append(f.endpoints[1:], old)
	f.write(s.dir)
	for name, at := range map[string]netip.AddrPort{f.web.name: old.tcp(), f.dns.name: old.udp()} {
		Eventually(func() string { return told(s.node, "/api/v1/services/default/"+name) }).WithTimeout(20 * time.Second).
			Should(And(ContainSubstring(strconv.Quote(name)), Not(ContainSubstring(strconv.Quote(at.String())))))
	}
	s.leaving = append(s.leaving, old)
	return fmt.Sprintf("rolling update: endpoint %s came, and %s left", last.at, old.at)
}

func (s *soak) flushRules() string {
	GinkgoHelper()
	var commands []string
	switch s.portal {
	case "iptables":
		commands = []string{"iptables -t nat -F", "ip6tables -t nat -F"}
	case "nftables":
		commands = []string{"nft flush table ip usher", "nft flush table ip6 usher", "nft flush ruleset"}
	default:
		commands = []string{"ip route flush table local proto 117", "ip -6 route flush table local proto 117"}
	}
	command := commands[s.rand.IntN(len(commands))]
	var gone time.Duration
	without := rulesGone
	if s.portal == "nftables" {
		without = nothingTranslated // no rule is left for which the kernel tracks connections
	}
	s.during(without, func() {
		began := time.Now()
		s.lab.Node.Output("sh", "-c", command)
		for _, f := range s.families {
			Eventually(func() error { return s.reach(f.web.vip()) }).WithTimeout(20 * time.Second).Should(Succeed())
		}
		gone = time.Since(began)
	})
	return fmt.Sprintf("%s; all VIPs served again after %s", command, gone.Round(time.Millisecond))
}

// reach makes a connection.
func (s *soak) reach(vip string) error {
	c, err := s.pod.Dial("", vip, time.Second)
	if err != nil {
		return err
	}
	return c.Close()
}

// changeService adds a Service, gives it another port, or takes it away.
func (s *soak) changeService() string {
	GinkgoHelper()
	switch had := s.guest; {
	case had.endpoints == nil:
		s.guest.port, s.guest.endpoints = 80, s.families[0].web.endpoints
		s.guest.write(s.dir)
		Eventually(func() error { return s.reach(s.guest.vip()) }).WithTimeout(20 * time.Second).Should(Succeed())
		return "Service guest was added"
	case s.rand.IntN(2) == 0:
		s.guest.port++
		s.guest.write(s.dir)
		Eventually(func() error { return s.reach(s.guest.vip()) }).WithTimeout(20 * time.Second).Should(Succeed())
		Eventually(func() error { return s.reach(had.vip()) }).WithTimeout(20 * time.Second).ShouldNot(Succeed())
		return fmt.Sprintf("Service guest has port %d instead of %d", s.guest.port, had.port)
	}
	s.removeGuest()
	return "Service guest was removed"
}

func (s *soak) removeGuest() {
	GinkgoHelper()
	s.guest.endpoints = nil
	Expect(os.Remove(filepath.Join(s.dir, s.guest.name+".yaml"))).To(Succeed())
	Eventually(func() error { return s.reach(s.guest.vip()) }).WithTimeout(20 * time.Second).ShouldNot(Succeed())
}

// takeDescriptors takes all descriptors that are free from usher, for a moment.
func (s *soak) takeDescriptors() string {
	GinkgoHelper()
	pid, lasting := s.kept.child(), time.Duration(200+s.rand.IntN(600))*time.Millisecond
	var had unix.Rlimit
	Expect(unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &had)).To(Succeed())
	few := had
	few.Cur = uint64(descriptors(pid))
	s.during(noDescriptors, func() {
		Expect(unix.Prlimit(pid, unix.RLIMIT_NOFILE, &few, nil)).To(Succeed())
		<-time.After(lasting)
		Expect(unix.Prlimit(pid, unix.RLIMIT_NOFILE, &had, nil)).To(Succeed())
		Eventually(func() error { return s.reach(s.families[0].web.vip()) }).WithTimeout(20 * time.Second).Should(Succeed())
	})
	return fmt.Sprintf("usher could have no more than its %d descriptors for %s", few.Cur, lasting)
}
