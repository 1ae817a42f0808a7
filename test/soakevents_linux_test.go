package test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"golang.org/x/sys/unix"
)

// incident is an event that may cost connections.
type incident int

const (
	usherKilled incident = iota
	endpointKilled
	rulesGone      // no rule redirects clients to usher
	nothingTracked // the kernel tracks no connections, so packets of open ones go astray
	noDescriptors  // usher cannot accept connections
	away           // usher or an endpoint: UDP clients may have to retry
	packetsDropped // by the kernel: UDP clients may have to retry
	anyLoss        // any of the above
)

// These are the reasons for lost connections.
const (
	lostWithUsher          = "whose usher was killed"
	lostWithEndpoint       = "whose endpoint was killed"
	lostWithoutRules       = "that nothing led to usher, since rules were flushed"
	lostUntracked          = "open while all rules were flushed, those of others too"
	lostUDPWithoutRules    = "UDP clients who came while rules were flushed"
	lostWithoutDescriptors = "turned away while usher had no descriptors left"
)

// family is an IP family, or bothFamilies.
type family int

const (
	four family = iota
	six
	bothFamilies
)

// familyOf returns the family of a VIP.
func familyOf(vip string) family {
	if netip.MustParseAddrPort(vip).Addr().Is4() {
		return four
	}
	return six
}

// incidents holds the times of all incidents by kind.
type incidents struct {
	mu    sync.Mutex
	times [anyLoss][]*soakEvent
}

// during records an incident that lasts while f runs.
func (in *incidents) during(kind incident, of family, f func()) {
	now := &soakEvent{at: time.Now(), of: of}
	in.mu.Lock()
	in.times[kind] = append(in.times[kind], now)
	in.mu.Unlock()
	f()
	in.mu.Lock()
	now.until = time.Now()
	in.mu.Unlock()
}

// note records an incident that is over.
func (in *incidents) note(kind incident, at, until time.Time) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.times[kind] = append(in.times[kind], &soakEvent{at: at, until: until, of: bothFamilies})
}

// within reports whether an incident of that kind and family overlaps the period.
func (in *incidents) within(kind incident, of family, from, until time.Time) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	for k, times := range in.times {
		for _, t := range times {
			if (k == int(kind) || kind == anyLoss) && (t.of == of || t.of == bothFamilies) && !t.at.After(until) && (t.until.IsZero() || !t.until.Before(from)) {
				return true
			}
		}
	}
	return false
}

// disturb makes one event after the other until end. It makes every kind at least once: all kinds in an order that the
// seed determines, and then again. At the end it removes the guest Service and the endpoints that have left.
func (s *soak) disturb(end time.Time) {
	GinkgoHelper()
	kinds := []func() string{s.killUsher, s.killKeeper, s.killEndpoint, s.rollEndpoints, s.flushRules, s.changeService, s.takeDescriptors}
	for first := true; first || time.Now().Before(end); first = false {
		for _, n := range s.rand.Perm(len(kinds)) {
			<-time.After(time.Duration(200+s.rand.IntN(500)) * time.Millisecond)
			if !first && time.Now().After(end) {
				break
			}
			s.dismiss()
			e := soakEvent{at: time.Now()}
			e.what = kinds[n]()
			e.until = time.Now()
			s.events = append(s.events, e)
		}
	}
	s.dismiss()
	if s.guest.endpoints != nil {
		s.removeGuest()
	}
}

// dismiss stops the endpoints that have left their Services.
func (s *soak) dismiss() {
	for _, e := range s.leaving {
		e.leave()
	}
	s.leaving = nil
}

func (s *soak) anyFamily() *soakFamily { return s.families[s.rand.IntN(len(s.families))] }

func (s *soak) killUsher() string {
	GinkgoHelper()
	pid := s.kept.child()
	s.during(away, bothFamilies, func() {
		s.during(usherKilled, bothFamilies, func() {
			Expect(syscall.Kill(pid, syscall.SIGKILL)).To(Succeed())
			Eventually(s.kept.Err).WithTimeout(30 * time.Second).Should(gbytes.Say("usher exited unexpectedly"))
		})
		Eventually(s.kept.Err).WithTimeout(time.Minute).Should(gbytes.Say("Serving"))
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
	f := s.anyFamily()
	e := f.endpoints[s.rand.IntN(len(f.endpoints)-1)]
	dead := time.Duration(100+s.rand.IntN(900)) * time.Millisecond
	s.during(away, f.of, func() {
		s.during(endpointKilled, f.of, e.die)
		<-time.After(dead) // usher must meet the dead endpoint
		e.listen()
	})
	return fmt.Sprintf("endpoint %s died, and came back after %s", e.at, dead)
}

// rollEndpoints replaces the oldest endpoint of the Services.
func (s *soak) rollEndpoints() string {
	GinkgoHelper()
	f := s.anyFamily()
	old, last := f.endpoints[0], f.endpoints[len(f.endpoints)-1]
	last.listen()
	f.endpoints = append(f.endpoints[1:], old)
	f.write(s.dir)
	for name, at := range map[string]netip.AddrPort{f.web.name: old.tcp(), f.dns.name: old.udp()} {
		Eventually(func() (string, error) { return s.traffic.get("/api/v1/services/default/" + name) }).WithTimeout(time.Minute).
			Should(And(ContainSubstring(strconv.Quote(name)), Not(ContainSubstring(strconv.Quote(at.String())))))
	}
	s.leaving = append(s.leaving, old)
	return fmt.Sprintf("rolling update: endpoint %s came, and %s left", last.at, old.at)
}

// flush is a command that removes usher's rules or routes of a family.
type flush struct {
	command string
	of      family
}

// flushes are the possible flushes by portal.
var flushes = map[string][]flush{
	"iptables": {{"iptables -t nat -F", four}, {"ip6tables -t nat -F", six}},
	"nftables": {{"nft flush table ip usher", four}, {"nft flush table ip6 usher", six}, {"nft flush ruleset", bothFamilies}},
	"address":  {{"ip route flush table local proto 117", four}, {"ip -6 route flush table local proto 117", six}},
}

// masquerade is a rule as most Pod networks have. While it exists, the kernel tracks connections even without usher's
// rules, so open connections survive a flush.
const masquerade = `nft add table inet cni
nft add chain inet cni pods '{ type nat hook postrouting priority srcnat; }'
nft add rule inet cni pods oifname nowhere masquerade`

func (s *soak) flushRules() string {
	GinkgoHelper()
	all := flushes[s.portal]
	f := all[s.rand.IntN(len(all))]
	without := rulesGone
	if f.of == bothFamilies {
		without = nothingTracked
	}
	var gone time.Duration
	s.during(without, f.of, func() {
		began := time.Now()
		s.lab.Node.Output("sh", "-c", f.command)
		for _, f := range s.families {
			s.await(f.web.vip())
		}
		gone = time.Since(began)
	})
	if f.of == bothFamilies {
		s.lab.Node.Output("sh", "-c", masquerade)
	}
	return fmt.Sprintf("%s; all VIPs served again after %s", f.command, gone.Round(time.Millisecond))
}

// await waits until a client can connect to vip.
func (s *soak) await(vip string) {
	GinkgoHelper()
	Eventually(func() error { return s.reach(vip) }).WithTimeout(time.Minute).Should(Succeed())
}

// reach makes a connection. Its timeout is short: the SYN may arrive while rules are missing, and the kernel retransmits
// it only after 1 s.
func (s *soak) reach(vip string) error {
	c, err := s.pod.Dial("", vip, 100*time.Millisecond)
	if err != nil {
		return err
	}
	return c.Close()
}

// changeService adds the guest Service, changes its port, or removes it.
func (s *soak) changeService() string {
	GinkgoHelper()
	switch had := s.guest; {
	case had.endpoints == nil:
		s.guest.port, s.guest.endpoints = 80, s.families[0].web.endpoints
		s.guest.write(s.dir)
		s.await(s.guest.vip())
		return "Service guest was added"
	case s.rand.IntN(2) == 0:
		s.guest.port++
		s.guest.write(s.dir)
		s.await(s.guest.vip())
		Eventually(func() error { return s.reach(had.vip()) }).WithTimeout(time.Minute).ShouldNot(Succeed())
		return fmt.Sprintf("Service guest has port %d instead of %d", s.guest.port, had.port)
	}
	s.removeGuest()
	return "Service guest was removed"
}

func (s *soak) removeGuest() {
	GinkgoHelper()
	s.guest.endpoints = nil
	Expect(os.Remove(filepath.Join(s.dir, s.guest.name+".yaml"))).To(Succeed())
	Eventually(func() error { return s.reach(s.guest.vip()) }).WithTimeout(time.Minute).ShouldNot(Succeed())
}

// takeDescriptors deprives usher of all free descriptors for a moment.
func (s *soak) takeDescriptors() string {
	GinkgoHelper()
	pid, lasting := s.kept.child(), time.Duration(200+s.rand.IntN(600))*time.Millisecond
	var had unix.Rlimit
	Expect(unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &had)).To(Succeed())
	few := had
	few.Cur = uint64(descriptors(pid))
	s.during(noDescriptors, bothFamilies, func() {
		Expect(unix.Prlimit(pid, unix.RLIMIT_NOFILE, &few, nil)).To(Succeed())
		<-time.After(lasting)
		Expect(unix.Prlimit(pid, unix.RLIMIT_NOFILE, &had, nil)).To(Succeed())
		s.await(s.families[0].web.vip())
	})
	return fmt.Sprintf("usher could have no more than its %d descriptors for %s", few.Cur, lasting)
}
