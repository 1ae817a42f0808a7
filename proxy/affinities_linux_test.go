package proxy

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/affinity"
	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal/fdpass"
	"github.com/usherproxy/usher/portal/fdstore"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/trace"
)

// sticky returns a proxy with one front end per port. Each has session affinity for timeout.
func sticky(timeout time.Duration, ports ...string) *Proxy {
	p := New(Options{AffinityPerPort: 10, AffinityTotal: 100})
	p.Log = logrus.New()
	for _, name := range ports {
		id := config.PortID{Namespace: "default", Service: "web", Port: name}
		service := id.ServiceName()
		if p.services[service] == nil {
			p.services[service] = map[config.PortID]*frontEnd{}
		}
		f := newFrontEnd(p, config.ServicePort{ID: id, AffinityTimeout: timeout})
		f.swapView(config.ServicePort{ID: id, AffinityTimeout: timeout})
		p.services[service][id] = f
	}
	return p
}

func (p *Proxy) table(port string) *affinity.Table {
	id := config.PortID{Namespace: "default", Service: "web", Port: port}
	return p.services[types.NamespacedName{Namespace: "default", Name: "web"}][id].Affinity
}

// TestAffinitiesSurviveHandover expects that clients keep their endpoints at existing service ports and at those added later,
// but not for longer than before.
func TestAffinitiesSurviveHandover(t *testing.T) {
	g := NewWithT(t)
	alice, bob, one := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::2"), netip.MustParseAddrPort("10.1.0.1:80")
	before := sticky(time.Minute, "http", "https")
	before.table("http").Set(alice, one, time.Now().Add(-20*time.Second))
	before.table("https").Set(bob, one, time.Now())
	g.Expect(before.remembered).To(Receive())
	file, err := before.Affinities()
	g.Expect(err).NotTo(HaveOccurred())

	after := sticky(time.Minute, "http")
	after.InheritAffinities(file)
	entries := after.table("http").Entries(time.Now())
	g.Expect(entries).To(HaveLen(1))
	g.Expect(entries[0].Client).To(Equal(alice))
	g.Expect(entries[0].Left).To(BeNumerically("~", 40*time.Second, time.Second))
	g.Expect(after.pendingAffinities).To(HaveLen(1))
	id := config.PortID{Namespace: "default", Service: "web", Port: "https"}
	f := newFrontEnd(after, config.ServicePort{ID: id, AffinityTimeout: time.Minute})
	had, known := f.Affinity.Get(bob, time.Now())
	g.Expect(known).To(BeTrue())
	g.Expect(had).To(Equal(one))
	g.Expect(after.pendingAffinities).To(BeEmpty())
}

// TestRemovingAllEndpointsIsFast expects that usher does not walk the client table once per removed endpoint. That took more
// than a minute here, and no other goroutine could read or change anything meanwhile.
func TestRemovingAllEndpointsIsFast(t *testing.T) {
	g := NewWithT(t)
	const endpoints, clients = 10_000, 65_536
	p := New(Options{AffinityPerPort: clients, AffinityTotal: clients, Settings: frontend.Settings{Trace: trace.NewLog(1)}})
	port := config.ServicePort{ID: config.PortID{Namespace: "default", Service: "web"}, Protocol: config.TCP, AffinityTimeout: time.Hour}
	all := port
	for i := range endpoints {
		all.Endpoints = append(all.Endpoints, config.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 80), Ready: true})
	}
	all.Cluster = all.Endpoints
	f := newFrontEnd(p, all)
	f.swapView(all)
	now := time.Now()
	for i := range clients {
		f.Affinity.Set(netip.AddrFrom4([4]byte{192, 168, byte(i >> 8), byte(i)}), all.Endpoints[i%endpoints].Addr, now)
	}
	filled := time.Since(now)
	f.swapView(port)
	g.Expect(time.Since(now)).To(BeNumerically("<", 50*filled), "a walk for each endpoint takes more than 1,000 times as long as it takes to fill the table")
	g.Expect(p.affinities.Used()).To(BeZero())
}

// FuzzAffinities: a file that cannot be read does no harm and is closed.
func FuzzAffinities(f *testing.F) {
	p := sticky(time.Minute, "http")
	p.Log.(*logrus.Logger).SetOutput(io.Discard)
	p.table("http").Set(netip.MustParseAddr("192.0.2.1"), netip.MustParseAddrPort("10.1.0.1:80"), time.Now())
	good, err := p.Affinities()
	if err != nil {
		f.Fatal(err)
	}
	defer good.Close()
	content, err := io.ReadAll(io.NewSectionReader(good, 0, 1<<20))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(content)
	f.Add(content[:len(content)/2])
	f.Add([]byte("\x0f\x05\x01\x02\xff\x80"))
	f.Fuzz(func(t *testing.T, content []byte) {
		file, err := handover.Memory("spoiled")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.Write(content); err != nil {
			t.Fatal(err)
		}
		p.InheritAffinities(file)
		if n := p.affinities.Used(); n > p.affinities.Total {
			t.Errorf("%d clients are remembered", n)
		}
		p.pendingAffinities = nil
		if !errors.Is(file.Close(), os.ErrClosed) {
			t.Error("the file stays open")
		}
	})
}

// TestAffinitiesAreStoredOnce expects that the Store always has a complete file, and in the end only the last one, even if
// an earlier process has left two.
func TestAffinitiesAreStoredOnce(t *testing.T) {
	g := NewWithT(t)
	at := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"}
	socket, err := net.ListenUnixgram("unixgram", at)
	g.Expect(err).NotTo(HaveOccurred())
	defer socket.Close()
	t.Setenv("NOTIFY_SOCKET", at.Name)
	p := sticky(time.Minute)
	p.Store, err = fdstore.FromEnvironment(p.Log)
	g.Expect(err).NotTo(HaveOccurred())

	stored := map[string]int{keptAffinities[0]: 1, keptAffinities[1]: 1}
	for n := range 2 {
		file, err := os.Open(os.DevNull)
		g.Expect(err).NotTo(HaveOccurred())
		p.keepAffinities(file)
		for range 3 {
			g.Expect(socket.SetReadDeadline(time.Now().Add(30 * time.Second))).To(Succeed())
			text := make([]byte, 100)
			size, fds, err := fdpass.Receive(socket, text, 1)
			g.Expect(err).NotTo(HaveOccurred())
			action, rest, _ := strings.Cut(string(text[:size]), "\nFDNAME=")
			name, _, _ := strings.Cut(rest, "\n")
			switch action {
			case "FDSTORE=1":
				stored[name]++
				g.Expect(fds).To(HaveLen(1))
				g.Expect(unix.Close(fds[0])).To(Succeed())
			case "FDSTOREREMOVE=1":
				delete(stored, name)
			}
			g.Expect(stored).NotTo(BeEmpty())
		}
		g.Expect(stored).To(Equal(map[string]int{keptAffinities[n]: 1}))
	}

	p.Store = nil
	file, err := os.Open(os.DevNull)
	g.Expect(err).NotTo(HaveOccurred())
	p.keepAffinities(file)
	g.Expect(file.Close()).To(MatchError(os.ErrClosed))
}
