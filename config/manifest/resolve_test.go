package manifest

import (
	"fmt"
	"net/netip"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/translate"
)

// svc returns the manifest of a Service with this spec.
func svc(name, spec string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {ports: [{port: 80}], %s}\n---\n", name, spec)
}

func at(ip string) string { return "clusterIP: " + ip }

// world is a set of files and the resulting model.
type world struct {
	resolver  *resolver
	discovery bool
	files     map[string]file
	changed   []config.Service
	errors    []Diagnostic // of all files
}

func newWorld(cidrs ...string) *world {
	var nets networks
	for _, c := range cidrs {
		nets = append(nets, netip.MustParsePrefix(c))
	}
	if nets == nil {
		nets = networks{DefaultServiceCIDR}
	}
	return &world{
		resolver: newResolver(nets, config.Node{}, translate.Options{AllowLoopbackEndpoints: true}, false),
		files:    map[string]file{},
	}
}

// write changes files (name, content, ...) and updates the model.
func (w *world) write(files ...string) {
	for i := 0; i < len(files); i += 2 {
		before := w.files[files[i]]
		r := read(files[i], []byte(files[i+1]), reading{objects: before.objects, documents: before.documents}, w.resolver.nets, 1<<20)
		r.renumber()
		f := file{objects: remember(before.objects, r), documents: r.documents, errors: r.errors, warnings: r.warnings}
		w.files[files[i]] = f
		w.resolver.replace(before.objects, f.objects)
	}
	w.changed = w.resolver.resolve()
	w.errors, _ = w.resolver.diagnostics()
	for _, f := range w.files {
		w.errors = append(w.errors, f.errors...)
	}
	sortDiagnostics(w.errors)
}

// served returns the served model of a Service.
func (w *world) served(n string) config.Service {
	return w.resolver.store.Model(name{Namespace: "default", Name: n})
}

// has returns the first cluster IP of a Service, or "" if it is not served.
func (w *world) has(name string) string {
	if s := w.served(name); len(s.Ports) > 0 {
		return s.Ports[0].VIPs[0].Addr.String()
	}
	return ""
}

func (w *world) said() string {
	var all []string
	for _, p := range w.errors {
		all = append(all, p.Error())
	}
	return strings.Join(all, "\n")
}

var _ = Describe("a document in which it is unknown how many objects there are", func() {
	DescribeTable("removes none", func(file, text string) {
		w := newWorld()
		w.write(file, strings.Replace(text, "#", "\n---\n", 1))
		Expect(w.served("one").Ports).To(HaveLen(1))
		w.write(file, strings.Replace(text, "#", "\n", 1))
		Expect(w.said()).To(ContainSubstring("duplicate field"))
		Expect(w.served("one").Ports).To(HaveLen(1))
	},
		Entry("because a separator is missing", "a.yaml", strings.Replace(svc("one", at("10.96.0.1")), "\n---\n", "#", 1)+svc("two", at("10.96.0.2"))),
		Entry("because its items are there twice", "b.yaml", "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Service, metadata: {name: one}, spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}}#items: []\n"),
	)
	It("removes none of a List whose item lost its dash", func() {
		w := newWorld()
		list := "apiVersion: v1\nkind: List\nitems:\n" + item("one", "10.96.0.1") + item("two", "10.96.0.2")
		w.write("a.yaml", list)
		Expect(w.has("one")).To(Equal("10.96.0.1"))
		last := strings.LastIndex(list, "- ")
		w.write("a.yaml", list[:last]+"  "+list[last+2:])
		Expect(w.said()).To(ContainSubstring("duplicate field"))
		Expect(w.has("one")).To(Equal("10.96.0.1"))
		Expect(w.has("two")).To(Equal("10.96.0.2"))
	})
})

// item returns a Service as an item of a YAML List.
func item(name, ip string) string {
	return fmt.Sprintf("- apiVersion: v1\n  kind: Service\n  metadata: {name: %s}\n  spec: {clusterIP: %s, ports: [{port: 80}]}\n", name, ip)
}

var _ = Describe("the last valid version", func() {
	It("of an object stays if its new version is invalid, while others change", func() {
		w := newWorld()
		w.write("a.yaml", svc("one", at("10.96.0.1"))+svc("two", at("10.96.0.2")))
		w.write("a.yaml", svc("one", "clusterIP: wrong")+svc("two", at("10.96.0.22")))
		Expect(w.has("one")).To(Equal("10.96.0.1"))
		Expect(w.has("two")).To(Equal("10.96.0.22"))
		Expect(w.said()).To(ContainSubstring(`a.yaml, document 1, Service default/one: spec.clusterIPs[0]: Invalid value: "wrong"`))
	})

	It("of an object stays if its new version has an unknown or duplicate field", func() {
		w := newWorld()
		w.write("a.yaml", svc("one", at("10.96.0.1"))+svc("two", at("10.96.0.2")))
		w.write("a.yaml", svc("one", "clusterIp: 10.96.0.11")+svc("two", "clusterIP: 10.96.0.22, clusterIP: 10.96.0.23"))
		Expect(w.has("one")).To(Equal("10.96.0.1"))
		Expect(w.has("two")).To(Equal("10.96.0.2"))
	})

	It("of a file's objects stays if a document is unreadable, except for readable ones", func() {
		w := newWorld()
		w.write("a.yaml", svc("one", at("10.96.0.1"))+svc("two", at("10.96.0.2"))+svc("three", at("10.96.0.3")))
		w.write("a.yaml", svc("one", at("10.96.0.11"))+"a: [\n---\n"+svc("three", at("10.96.0.3")))
		Expect(w.has("one")).To(Equal("10.96.0.11"))
		Expect(w.has("two")).To(Equal("10.96.0.2"))

		w.write("a.yaml", svc("one", at("10.96.0.11")))
		Expect(w.has("two")).To(BeEmpty(), "once the file is readable, objects missing from it are removed")
		Expect(w.has("three")).To(BeEmpty())
	})

	It("of one file does not affect other files", func() {
		w := newWorld()
		w.write("a.yaml", svc("one", at("10.96.0.1")), "b.yaml", svc("two", at("10.96.0.2")))
		w.write("a.yaml", "}", "b.yaml", svc("two", at("10.96.0.22")))
		Expect(w.has("one")).To(Equal("10.96.0.1"))
		Expect(w.has("two")).To(Equal("10.96.0.22"))
	})

	It("does not exist for an object that was never valid", func() {
		w := newWorld()
		w.write("a.yaml", svc("one", "clusterIP: wrong"))
		Expect(w.has("one")).To(BeEmpty())
	})

	It("stays if the new version specifies another Service's cluster IP", func() {
		w := newWorld()
		w.write("a.yaml", svc("one", at("10.96.0.1")), "b.yaml", svc("two", at("10.96.0.2")))
		w.write("a.yaml", svc("one", at("10.96.0.2")))
		Expect(w.has("one")).To(Equal("10.96.0.1"))
		Expect(w.has("two")).To(Equal("10.96.0.2"))
		Expect(w.said()).To(Equal(`a.yaml, document 1, Service default/one: spec.clusterIP: Invalid value: "10.96.0.2": provided IP is already allocated to Service default/two`))

		w.write("b.yaml", "")
		Expect(w.has("one")).To(Equal("10.96.0.2"), "it is used once it is free")
	})
})

var _ = Describe("an object that is defined twice", func() {
	It("has the definition of the first file, and an error in the second", func() {
		w := newWorld()
		w.write("b.yaml", svc("one", at("10.96.0.2")))
		w.write("a.yaml", svc("one", at("10.96.0.1")))
		Expect(w.has("one")).To(Equal("10.96.0.1"))
		Expect(w.said()).To(Equal("b.yaml, document 1, Service default/one: already defined in a.yaml, document 1"))
	})

	It("has the second definition once the first is deleted", func() {
		w := newWorld()
		w.write("a.yaml", svc("one", at("10.96.0.1")), "b.yaml", svc("one", at("10.96.0.2")))
		w.write("a.yaml", "")
		Expect(w.has("one")).To(Equal("10.96.0.2"))
		Expect(w.errors).To(BeEmpty())
	})
})

var _ = Describe("a cluster IP that two Services specify", func() {
	It("belongs to the first Service at startup", func() {
		w := newWorld()
		w.write("a.yaml", svc("one", at("10.96.0.1")), "b.yaml", svc("two", at("10.96.0.1")))
		Expect(w.has("one")).To(Equal("10.96.0.1"))
		Expect(w.has("two")).To(BeEmpty())
	})

	It("stays with the Service that has it, whatever the order", func() {
		w := newWorld()
		w.write("b.yaml", svc("two", at("10.96.0.1")))
		w.write("a.yaml", svc("one", at("10.96.0.1")))
		Expect(w.has("one")).To(BeEmpty())
		Expect(w.has("two")).To(Equal("10.96.0.1"))
	})

	It("can be swapped with the other Service's", func() {
		w := newWorld()
		w.write("a.yaml", svc("one", at("10.96.0.1")), "b.yaml", svc("two", at("10.96.0.2")))
		w.write("a.yaml", svc("one", at("10.96.0.2")), "b.yaml", svc("two", at("10.96.0.1")))
		Expect(w.errors).To(BeEmpty())
		Expect(w.has("one")).To(Equal("10.96.0.2"))
		Expect(w.has("two")).To(Equal("10.96.0.1"))
	})
})

var _ = Describe("a Service without a cluster IP", func() {
	It("gets the same one in every process, whatever other Services exist", func() {
		w := newWorld()
		w.write("a.yaml", svc("one", ""))
		ip := w.has("one")
		Expect(DefaultServiceCIDR.Contains(netip.MustParseAddr(ip))).To(BeTrue())

		other := newWorld()
		other.write("a.yaml", svc("two", "")+svc("three", ""), "c.yaml", svc("one", ""))
		Expect(other.has("one")).To(Equal(ip))
	})

	It("keeps it even if another Service specifies it later", func() {
		w := newWorld()
		w.write("b.yaml", svc("one", ""))
		ip := w.has("one")
		w.write("a.yaml", svc("two", at(ip)))
		Expect(w.has("one")).To(Equal(ip))
		Expect(w.has("two")).To(BeEmpty())
		Expect(w.said()).To(ContainSubstring("already allocated to Service default/one"))
	})

	It("gets another one if another Service specifies it from the start", func() {
		w := newWorld()
		w.write("b.yaml", svc("one", ""))
		ip := w.has("one")
		fresh := newWorld()
		fresh.write("b.yaml", svc("one", ""), "c.yaml", svc("two", at(ip)))
		Expect(fresh.has("two")).To(Equal(ip))
		Expect(fresh.has("one")).NotTo(Or(BeEmpty(), Equal(ip)))
	})

	It("keeps the cluster IP that it specified before", func() {
		w := newWorld()
		w.write("a.yaml", svc("one", at("10.96.0.1")))
		w.write("a.yaml", svc("one", ""))
		Expect(w.has("one")).To(Equal("10.96.0.1"))
	})

	It("keeps its IPv4 address when it gets an IPv6 one too", func() {
		w := newWorld("10.96.0.0/12", "fd00::/112")
		w.write("a.yaml", svc("one", ""))
		ip := w.has("one")
		w.write("a.yaml", svc("one", "ipFamilyPolicy: RequireDualStack"))
		Expect(w.has("one")).To(Equal(ip))
		Expect(w.served("one").Ports).To(HaveLen(2))
	})

	It("gets none if none is free, which is reported", func() {
		w := newWorld("10.0.0.0/30")
		w.write("a.yaml", svc("one", "")+svc("two", "")+svc("three", ""))
		Expect([]string{w.has("one"), w.has("two")}).To(ConsistOf("10.0.0.1", "10.0.0.2"), "neither network nor broadcast address")
		Expect(w.has("three")).To(BeEmpty())
		Expect(w.said()).To(Equal("a.yaml, document 3, Service default/three: spec.clusterIP: no free address in service CIDR 10.0.0.0/30"))
	})
})

var _ = Describe("the allocation of cluster IPs", func() {
	nothing := func(netip.Addr) bool { return false }

	It("leaves the lowest addresses for Services that specify theirs", func() {
		for i := range 1000 {
			a, ok := address(netip.MustParsePrefix("10.96.0.0/12"), fmt.Sprint("default/", i), nothing)
			Expect(ok).To(BeTrue())
			Expect(a.Compare(netip.MustParseAddr("10.96.1.0"))).To(BeNumerically(">", 0))
		}
	})

	It("uses the whole network before it gives up, the lowest addresses last", func() {
		network := netip.MustParsePrefix("10.0.0.0/24")
		got := map[netip.Addr]bool{}
		for i := range 254 {
			a, ok := address(network, fmt.Sprint("default/", i), func(a netip.Addr) bool { return got[a] })
			Expect(ok).To(BeTrue())
			Expect(a.As4()[3] > 16).To(Equal(i < 254-16))
			got[a] = true
		}
		Expect(got).To(HaveLen(254))
		Expect(got).NotTo(HaveKey(netip.MustParseAddr("10.0.0.0")))
		Expect(got).NotTo(HaveKey(netip.MustParseAddr("10.0.0.255")))
		_, ok := address(network, "default/x", func(a netip.Addr) bool { return got[a] })
		Expect(ok).To(BeFalse())
	})

	It("supports large IPv6 networks", func() {
		network := netip.MustParsePrefix("fd00:1234::/48")
		a, ok := address(network, "default/one", nothing)
		Expect(ok).To(BeTrue())
		Expect(network.Contains(a)).To(BeTrue())
	})
})

var _ = Describe("Endpoints and EndpointSlices of one Service", func() {
	const endpoints = "apiVersion: v1\nkind: Endpoints\nmetadata: {name: one}\nsubsets: [{addresses: [{ip: 10.0.0.1}], ports: [{port: 80}]}]\n---\n"
	slice := func(labels string) string {
		return "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: one-1, labels: {kubernetes.io/service-name: one" + labels + "}}\n" +
			"addressType: IPv4\nports: [{port: 80}]\nendpoints: [{addresses: [10.0.0.2]}]\n---\n"
	}
	addrs := func(w *world) (out []string) {
		for _, e := range w.served("one").Ports[0].Cluster {
			out = append(out, e.Addr.Addr().String())
		}
		return out
	}

	It("are not missing if a dump has an Endpoints without endpoints", func() {
		w := newWorld()
		w.write("a.yaml", svc("one", "selector: {app: one}"))
		_, warnings := w.resolver.diagnostics()
		Expect(warnings).To(ConsistOf(MatchError(ContainSubstring("no EndpointSlice or Endpoints"))))
		w.write("b.yaml", "apiVersion: v1\nkind: Endpoints\nmetadata: {name: one}\n")
		_, warnings = w.resolver.diagnostics()
		Expect(warnings).To(BeEmpty())
	})

	It("are used together if users created both", func() {
		w := newWorld()
		w.write("a.yaml", svc("one", "")+endpoints+slice(""))
		Expect(addrs(w)).To(Equal([]string{"10.0.0.1", "10.0.0.2"}))
	})

	It("are the same in a cluster dump, of which only the slices are used", func() {
		w := newWorld()
		w.write("a.yaml", svc("one", "")+endpoints+slice(", endpointslice.kubernetes.io/managed-by: endpointslice-controller.k8s.io"))
		Expect(addrs(w)).To(Equal([]string{"10.0.0.2"}))
	})
})

var _ = Describe("the cached model of a Service", func() {
	web := svc("web", at("10.96.0.1"))
	slice := func(addr string) string {
		return "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web-1, labels: {kubernetes.io/service-name: web}}\n" +
			"addressType: IPv4\nports: [{name: \"\", port: 8080}]\nendpoints: [{addresses: [" + addr + "]}]\n"
	}
	endpoints := func(w *world) int {
		return len(w.served("web").Ports[0].Cluster)
	}

	It("is used again if its objects are the same", func() {
		w := newWorld()
		w.write("a.yaml", web, "b.yaml", slice("10.1.0.1"))
		before := w.served("web").Ports
		w.write("c.yaml", svc("other", at("10.96.0.2")))
		Expect(w.changed).To(HaveExactElements(HaveField("Name.Name", "other")))
		Expect(&w.served("web").Ports[0]).To(BeIdenticalTo(&before[0]))
	})
	It("is replaced if its endpoints change", func() {
		w := newWorld()
		w.write("a.yaml", web, "b.yaml", slice("10.1.0.1"))
		w.write("b.yaml", slice("10.1.0.1, 10.1.0.2"))
		w.write("b.yaml", "")
		Expect(endpoints(w)).To(BeZero())
	})
	It("is replaced if an endpoint's address becomes a cluster IP or stops being one", func() {
		w := newWorld()
		w.write("a.yaml", web, "b.yaml", slice("10.96.0.2"))
		Expect(endpoints(w)).To(Equal(1))
		w.write("c.yaml", svc("other", at("10.96.0.2")))
		Expect(endpoints(w)).To(BeZero(), "a connection to it would loop")
		Expect(w.said()).To(ContainSubstring("10.96.0.2"))
		w.write("c.yaml", "")
		Expect(endpoints(w)).To(Equal(1))
		Expect(w.said()).To(BeEmpty())
	})
})
