package manifest_test

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/manifest"
)

const onlyNames = `apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: None, ports: [{name: sql, port: 5432}]}
---
apiVersion: v1
kind: Endpoints
metadata: {name: db}
subsets:
- addresses: [{ip: 10.0.0.1, hostname: db-0}]
  ports: [{name: sql, port: 5432}]
---
apiVersion: v1
kind: Service
metadata: {name: outside}
spec: {type: ExternalName, externalName: www.example.com}
---
`

var _ = Describe("headless and ExternalName Services", func() {
	var dir string
	BeforeEach(func() {
		dir = GinkgoT().TempDir()
		Expect(os.WriteFile(filepath.Join(dir, "names.yaml"), []byte(onlyNames), 0o644)).To(Succeed())
	})
	start := func(discovery bool) (applied chan []config.Service) {
		GinkgoHelper()
		s, err := manifest.New(manifest.Options{Paths: []string{dir}, Discovery: discovery})
		Expect(err).NotTo(HaveOccurred())
		ctx, cancel := context.WithCancel(context.Background())
		applied = make(chan []config.Service, 10)
		done := make(chan error)
		go func() { done <- s.Run(ctx, func(services []config.Service) { applied <- services }) }()
		DeferCleanup(func() {
			cancel()
			Eventually(done).Should(Receive(BeNil()))
		})
		return applied
	}
	byName := func(services []config.Service) map[string]*config.Discovery {
		out := map[string]*config.Discovery{}
		for _, s := range services {
			Expect(s.Ports).To(BeEmpty())
			out[s.Name.Name] = s.Discovery
		}
		return out
	}

	It("are valid, and are not applied without discovery", func() {
		r, err := manifest.Check(manifest.Options{Paths: []string{dir}})
		Expect(err).NotTo(HaveOccurred())
		Expect(r.Errors).To(BeEmpty())
		Expect(r.Warnings).To(BeEmpty())
		Eventually(start(false)).Should(Receive(BeEmpty()))
	})

	It("are applied with discovery, also when they change or are removed", func() {
		applied := start(true)
		var services []config.Service
		Eventually(applied).Should(Receive(&services))
		Expect(byName(services)).To(Equal(map[string]*config.Discovery{
			"db": {
				Ports: []config.DiscoveryPort{{Name: "sql", Protocol: config.TCP, Number: 5432}},
				Endpoints: []config.DiscoveryEndpoint{{Addr: netip.MustParseAddr("10.0.0.1"), Hostname: "db-0",
					Ports: []config.DiscoveryPort{{Name: "sql", Protocol: config.TCP, Number: 5432}}}},
			},
			"outside": {ExternalName: "www.example.com"},
		}))

		Expect(os.WriteFile(filepath.Join(dir, "names.yaml"), []byte(`apiVersion: v1
kind: Service
metadata: {name: outside}
spec: {type: ExternalName, externalName: www.example.org}
`), 0o644)).To(Succeed())
		Eventually(applied).Should(Receive(&services))
		Expect(byName(services)).To(Equal(map[string]*config.Discovery{"db": nil, "outside": {ExternalName: "www.example.org"}}))
	})
})
