package manifest

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/config"
)

// servedAs returns the Services that are served, by name.
func (l *loader) servedAs() map[string]config.Service {
	out := map[string]config.Service{}
	for n, s := range l.resolver.services {
		if !s.model.Gone() {
			out[n.Name] = s.model
		}
	}
	return out
}

var _ = Describe("a file that is read before all is quiet", func() {
	var dir, a, b, c string
	var l *loader
	BeforeEach(func() {
		if runtime.GOOS != "linux" {
			Skip("it cannot be told who has a file open")
		}
		dir = GinkgoT().TempDir()
		a, b, c = filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml"), filepath.Join(dir, "c.yaml")
		var err error
		l, err = Options{Paths: []string{dir}, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/29")}}.loader()
		Expect(err).NotTo(HaveOccurred())
	})
	put := func(path, text string) {
		GinkgoHelper()
		Expect(os.WriteFile(path, []byte(text), 0o644)).To(Succeed())
	}
	load := func() loaded { return l.load(list(l.paths), time.Now()) }
	hasten := func(path string) []config.Service {
		changed, busy := l.hasten(path, false, time.Now())
		Expect(busy).To(BeFalse())
		return changed
	}
	ports := func(ports string) string { return strings.Replace(svc("one", at("10.96.0.1")), "{port: 80}", ports, 1) }

	It("is given no cluster IP that a file which comes with it may name", func() {
		load()
		put(b, svc("any", "type: ClusterIP"))
		hasten(b)
		taken, _ := address(l.resolver.nets[0], "default/any", claims{}.taken)
		put(c, svc("named", at(taken.String())))
		Expect(load().errors).To(BeEmpty())
		Expect(l.servedAs()).To(And(HaveKey("any"), HaveKey("named")))
	})

	It("keeps the cluster IP that was allocated, and changes at once", func() {
		put(b, svc("any", "type: ClusterIP"))
		load()
		had := l.servedAs()["any"].Ports[0].VIPs
		put(b, strings.Replace(svc("any", "type: ClusterIP"), "80", "8080", 1))
		Expect(hasten(b)).To(HaveLen(1))
		Expect(l.servedAs()["any"].Ports[0].VIPs[0].Addr).To(Equal(had[0].Addr))
	})

	It("takes no port of an object that another file has had alone", func() {
		put(c, ports("{name: p80, port: 80}, {name: p81, port: 81}"))
		load()
		put(a, ports("{name: p80, port: 80}"))
		Expect(hasten(a)).To(BeEmpty())
		put(a, ports("{name: p80, port: 80}, {name: p82, port: 82}"))
		Expect(hasten(a)).To(HaveLen(1))
	})

	It("takes no port of an object by defining it a second time, and before", func() {
		both, one := ports("{name: p80, port: 80}, {name: p81, port: 81}"), ports("{name: p80, port: 80}")
		put(a, both)
		load()
		put(a, one+both)
		Expect(hasten(a)).To(BeEmpty())
		put(a, both+one)
		Expect(hasten(a)).To(BeEmpty())
		Expect(load().errors).To(HaveExactElements(HaveField("Document", 2)))
		Expect(l.servedAs()["one"].Ports).To(HaveLen(2))
	})

	It("can be written while what was read of it is decoded", func() {
		load()
		put(a, many(5000))
		leased := fmt.Sprintf(" READ %d ", os.Getpid())
		done := make(chan struct{})
		go func() {
			defer close(done)
			l.hasten(a, false, time.Now())
		}()
		for finished := false; !finished; { // unless it is too short to be seen
			select {
			case <-done:
				finished = true
				continue
			default:
			}
			locks, err := os.ReadFile("/proc/locks")
			Expect(err).NotTo(HaveOccurred())
			if !strings.Contains(string(locks), leased) { // proc_locks(5)
				continue
			}
			f, err := os.OpenFile(a, os.O_WRONLY, 0)
			Expect(err).NotTo(HaveOccurred())
			Expect(f.Close()).To(Succeed())
			Expect(done).NotTo(BeClosed(), "it was decoded and resolved meanwhile")
			finished = true
		}
		<-done
	})

	It("is told by the path it has now", func() {
		put(a, svc("one", at("10.96.0.1"))+svc("two", at("10.96.0.1")))
		Expect(load().errors).To(HaveLen(1))
		there := list(l.paths)
		there.entries[0].path = dir + "/./a.yaml" // as of the same folder, given a second time
		put(a, svc("one", at("10.96.0.1"))+svc("two", at("10.96.0.1"))+"# more\n")
		Expect(l.load(there, time.Now()).errors).To(HaveExactElements(HaveField("File", there.entries[0].path)))
	})
})
