package manifest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"sigs.k8s.io/yaml"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/translate"
)

// history is the state that a resolver keeps forever: the addresses of each Service.
type history struct {
	had    map[name]addressed
	claims map[name][]claim
	owners claims
}

func (r *resolver) history() history {
	h := history{map[name]addressed{}, map[name][]claim{}, maps.Clone(r.owners)}
	for n, s := range r.services {
		h.had[n], h.claims[n] = s.had, s.claims
	}
	return h
}

// afresh returns a resolver that knows only the history h, and computes the model of all files from scratch.
func (w *world) afresh(h history) *resolver {
	r := newResolver(w.resolver.nets, w.resolver.node, translate.Options{AllowLoopbackEndpoints: true}, w.discovery)
	r.nodePorts, r.balancerNets = w.resolver.nodePorts, w.resolver.balancerNets
	for n, had := range h.had {
		r.services[n] = &service{had: had, claims: slices.Clone(h.claims[n])}
		r.store.Mark(n)
	}
	r.owners = h.owners
	for _, f := range w.files {
		r.replace(nil, f.objects)
	}
	r.resolve()
	return r
}

// model returns the served Services and the diagnostics of a resolver.
func (r *resolver) model() (map[name]config.Service, string) {
	served := map[name]config.Service{}
	for n := range r.services {
		if model := r.store.Model(n); !model.Gone() {
			served[n] = model
		}
	}
	errs, warnings := r.diagnostics()
	return served, fmt.Sprintln(sortDiagnostics(errs), sortDiagnostics(warnings))
}

// anything returns a valid or invalid document with one of a few names and addresses.
func anything(random *rand.Rand) string {
	some := func(format string, n int) string { return fmt.Sprintf(format, 1+random.IntN(n)) }
	name, ip := some("s%d", 6), some("10.96.0.%d", 6)
	slice := func(labels string) string {
		port := []string{`""`, `""`, "wrong"}[random.IntN(3)]
		return fmt.Sprintf("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %s, labels: {%s}}\naddressType: IPv4\n"+
			"ports: [{name: %s, port: 8080}]\nendpoints: [{addresses: [%s]}]\n---\n", some("e%d", 6), labels, port, some("10.96.0.%d", 8))
	}
	switch random.IntN(12) {
	case 0:
		return svc(name, "clusterIP: wrong")
	case 1:
		return "a: [\n---\n"
	case 2:
		return svc(name, "clusterIP: None")
	case 3:
		return svc(name, "ipFamilyPolicy: PreferDualStack")
	case 4:
		return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {type: NodePort, ports: [{port: 80, nodePort: %s}]}\n---\n", name, some("3000%d", 3))
	case 5:
		return fmt.Sprintf("apiVersion: v1\nkind: Endpoints\nmetadata: {name: %s}\nsubsets: [{addresses: [{ip: %s}], ports: [{port: 80}]}]\n---\n", name, ip)
	case 6, 7:
		return svc(name, at(ip))
	case 8:
		return slice("")
	case 9:
		return slice("kubernetes.io/service-name: " + name + ", endpointslice.kubernetes.io/managed-by: endpointslice-controller.k8s.io")
	}
	return slice("kubernetes.io/service-name: " + name)
}

var _ = Describe("the model computed from changes", func() {
	DescribeTable("equals the model computed from scratch", func(discovery bool, cidrs ...string) {
		const rounds = 1000
		random := rand.New(rand.NewPCG(17, 0))
		var w *world
		var texts map[string][]string
		for round := range rounds {
			if round%100 == 0 {
				w, texts = newWorld(cidrs...), map[string][]string{}
				w.discovery = discovery
				w.resolver = newResolver(w.resolver.nets, config.Node{}, translate.Options{AllowLoopbackEndpoints: true}, discovery)
			}
			var files []string
			for _, file := range []string{"a.yaml", "b.yaml", "c.yaml"} {
				t := texts[file]
				switch random.IntN(5) {
				case 0:
					t = nil
				case 1:
					random.Shuffle(len(t), func(i, j int) { t[i], t[j] = t[j], t[i] })
				case 2:
					t = append([]string{anything(random)}, t...)
				case 3:
					if len(t) > 0 {
						t[random.IntN(len(t))] = anything(random)
					}
				default:
					continue
				}
				texts[file] = t
				files = append(files, file, strings.Join(t, ""))
			}
			h := w.resolver.history()
			before, _ := w.resolver.model()
			w.write(files...)
			served, published := w.resolver.model()
			wantServed, wantPublished := w.afresh(h).model()
			where := fmt.Sprintf("round %d", round)
			Expect(served).To(Equal(wantServed), where)
			Expect(published).To(Equal(wantPublished), where)
			for _, s := range w.changed {
				delete(before, s.Name)
				if !s.Gone() {
					before[s.Name] = s
				}
			}
			Expect(before).To(Equal(served), where)
		}
	},
		Entry("with many free addresses", false, "10.96.0.0/24"),
		Entry("with few free addresses", false, "10.96.0.0/29"),
		Entry("with both families and discovery", true, "10.96.0.0/29", "fd00::/126"),
	)
})

// warnedOf returns an EndpointSlice that causes a warning.
func warnedOf(name string) string {
	return fmt.Sprintf("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %s}\naddressType: IPv4\nendpoints: [{addresses: [10.0.0.1, 10.0.0.2]}]\n---\n", name)
}

var _ = Describe("a document that has not changed", func() {
	It("is not decoded again, and is reported at its current position", func() {
		w := newWorld()
		w.write("a.yaml", "---\n"+svc("one", at("10.96.0.1"))+svc("two", at("10.96.0.1"))+warnedOf("three"))
		before := w.files["a.yaml"].objects
		Expect(w.said()).To(HavePrefix("a.yaml, document 2, Service default/two: spec.clusterIP"))

		w.write("a.yaml", "---\n"+svc("zero", at("10.96.0.9"))+warnedOf("three")+svc("one", at("10.96.0.1"))+svc("two", at("10.96.0.1")))
		Expect(w.files["a.yaml"].objects[1:]).To(HaveExactElements(BeIdenticalTo(before[2]), BeIdenticalTo(before[0]), BeIdenticalTo(before[1])))
		Expect(w.changed).To(HaveExactElements(HaveField("Name.Name", "zero")))
		Expect(w.said()).To(HavePrefix("a.yaml, document 4, Service default/two: spec.clusterIP"))
		Expect(w.files["a.yaml"].warnings).To(HaveExactElements(HaveField("Document", 2)))
	})

	It("as an item of a List is not decoded again either", func() {
		w := newWorld()
		item := func(name, ip string) string {
			return fmt.Sprintf("- {apiVersion: v1, kind: Service, metadata: {name: %s}, spec: {clusterIP: %s, ports: [{port: 80}]}}\n", name, ip)
		}
		list := func(items ...string) string { return "apiVersion: v1\nkind: List\nitems:\n" + strings.Join(items, "") }
		one, two, refused := item("one", "10.96.0.1"), item("two", "10.96.0.2"), item("refused", "10.96.0.2")
		for _, file := range []string{"a.yaml", "b.json"} {
			text := func(items ...string) string {
				if file == "b.json" {
					json, err := yaml.YAMLToJSON([]byte(list(items...)))
					Expect(err).NotTo(HaveOccurred())
					return string(json)
				}
				return list(items...)
			}
			w.write(file, text(one, two, refused))
			before := w.files[file].objects
			Expect(w.said()).To(ContainSubstring("items[2], Service default/refused: spec.clusterIP"))

			w.write(file, text(one, item("new", "10.96.0.3"), two, refused))
			now := w.files[file].objects
			Expect(now[0]).To(BeIdenticalTo(before[0]))
			Expect(now[2].service).To(BeIdenticalTo(before[1].service))
			Expect(now[2].place.Item).To(Equal("items[2]"))
			Expect(before[1].place.Item).To(Equal("items[1]"))
			Expect(w.changed).To(HaveExactElements(HaveField("Name.Name", "new")))
			Expect(w.said()).To(ContainSubstring("items[3], Service default/refused: spec.clusterIP"))

			By("writing the same items in a List that does not give their kind")
			ofList := func(kind string) string {
				return strings.NewReplacer("kind: List", "kind: "+kind, `"kind":"List"`, `"kind":"`+kind+`"`, "kind: Service, ", "", `"kind":"Service",`, "").Replace(text(one))
			}
			w.write(file, ofList("ServiceList"))
			Expect(w.said()).To(BeEmpty())
			w.write(file, ofList("List"))
			Expect(w.said()).To(ContainSubstring("kind"))
			w.write(file, text())
		}

		w.write("a.yaml", list(one)+"---\n"+list(two))
		w.write("a.yaml", list(one)+"---\n"+list(one, two))
		Expect(w.said()).To(MatchRegexp(`^a.yaml, document 2, items\[0\], Service default/one: .* in a.yaml, document 1$`))
	})

	It("as an item that is defined several times has one place each", func() {
		w := newWorld()
		item := func(ip string) string {
			return fmt.Sprintf(`{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Service","metadata":{"name":"one"},"spec":{"clusterIP":%q,"ports":[{"port":80}]}}]}`, ip)
		}
		text := item("10.96.0.1") + item("10.96.0.2") + item("10.96.0.1")
		for range 2 {
			w.write("a.json", text)
			Expect(w.served("one").Ports[0].VIPs[0].Addr.String()).To(Equal("10.96.0.1"))
			objects := w.files["a.json"].objects
			Expect(objects[0]).NotTo(BeIdenticalTo(objects[2]))
			text += item("10.96.0.3")
		}
	})

	It("is decoded again if it has errors, or aliases, which count for the whole file", func() {
		w := newWorld()
		text := "a: &x 1\nb: *x\n---\na: [\n---\n"
		w.write("a.yaml", text)
		said := w.said()
		w.write("a.yaml", "# moved\n"+text)
		Expect(w.said()).To(Equal(strings.ReplaceAll(said, "line 5", "line 6")))
		for _, d := range w.files["a.yaml"].documents {
			Expect(d.keep).To(BeFalse())
		}
	})
})
