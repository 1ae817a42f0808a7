package manifest_test

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/manifest"
)

// update makes the tests write the golden files: go test ./config/manifest -update
var update = flag.Bool("update", false, "write the golden files anew")

func TestManifest(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "config/manifest")
}

var here = config.Node{Name: "here", Zone: "east"}

// report formats the result of Check.
func report(r *manifest.Result) string {
	var b strings.Builder
	for _, p := range r.Errors {
		fmt.Fprintf(&b, "error: %v\n", p)
	}
	for _, p := range r.Warnings {
		fmt.Fprintf(&b, "warning: %v\n", p)
	}
	for _, svc := range r.Services {
		b.WriteString(describe(svc))
	}
	return b.String()
}

// describe formats the served model of a Service.
func describe(svc config.Service) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", svc.Name)
	if svc.HealthCheckNodePort != 0 {
		fmt.Fprintf(&b, "  healthCheckNodePort %d\n", svc.HealthCheckNodePort)
	}
	for _, p := range svc.Ports {
		fmt.Fprintf(&b, "  %s %s", p.ID, p.Protocol)
		if p.AffinityTimeout != 0 {
			fmt.Fprintf(&b, " affinity %v", p.AffinityTimeout)
		}
		if p.Scheduler != 0 {
			fmt.Fprintf(&b, " scheduler %s", p.Scheduler)
		}
		if p.Probe != (config.Probe{}) {
			fmt.Fprintf(&b, " probe %s interval=%v timeout=%v rise=%d fall=%d", p.Probe.Check, p.Probe.Interval, p.Probe.Timeout, p.Probe.Rise, p.Probe.Fall)
		}
		b.WriteString("\n")
		for _, v := range p.VIPs {
			fmt.Fprintf(&b, "    %s %s %v\n", v.Kind, v.AddrPort(), v.Sources)
		}
		for _, e := range p.Endpoints {
			fmt.Fprintf(&b, "    endpoint %s node=%s zone=%s pod=%s ready=%t serving=%t terminating=%t", e.Addr, e.Node, e.Zone, e.Pod, e.Ready, e.Serving, e.Terminating)
			if e.Weight != 0 {
				fmt.Fprintf(&b, " weight=%d", e.Weight.Int())
			}
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "    cluster %s, internal %s, external %s\n", addrs(p.Cluster), addrs(p.Internal), addrs(p.External))
	}
	return b.String()
}

func addrs(endpoints []config.Endpoint) []netip.AddrPort {
	var out []netip.AddrPort
	for _, e := range endpoints {
		out = append(out, e.Addr)
	}
	return out
}

// golden compares got with the golden file of input.
func golden(input, got string) {
	GinkgoHelper()
	file := input + ".golden"
	if *update {
		Expect(os.WriteFile(file, []byte(got), 0o644)).To(Succeed())
		return
	}
	want, err := os.ReadFile(file)
	Expect(err).NotTo(HaveOccurred(), "go test ./config/manifest -update writes it")
	Expect(got).To(Equal(string(want)))
}

// inputs returns the manifests in a folder of testdata.
func inputs(folder string) []string {
	var out []string
	for _, pattern := range []string{"*.yaml", "*.json"} {
		files, err := filepath.Glob(filepath.Join("testdata", folder, pattern))
		if err != nil {
			panic(err)
		}
		out = append(out, files...)
	}
	return out
}

var _ = Describe("a valid manifest", func() {
	for _, file := range inputs("good") {
		It("is served: "+filepath.Base(file), func() {
			r, err := manifest.Check(manifest.Options{
				Paths:        []string{file},
				ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00:10:96::/112")},
				Node:         here,
			})
			Expect(err).NotTo(HaveOccurred())
			Expect(r.Errors).To(BeEmpty())
			golden(file, report(r))
		})
	}
})

var _ = Describe("an invalid manifest", func() {
	for _, file := range inputs("bad") {
		It("is reported with all its errors: "+filepath.Base(file), func() {
			r, err := manifest.Check(manifest.Options{Paths: []string{file}, Node: here})
			Expect(err).NotTo(HaveOccurred())
			Expect(r.Errors).NotTo(BeEmpty())
			golden(file, report(r))
		})
	}
})

var _ = Describe("the examples", func() {
	It("have no errors or warnings", func() {
		r, err := manifest.Check(manifest.Options{Paths: []string{"../../examples"}})
		Expect(err).NotTo(HaveOccurred())
		Expect(r.Errors).To(BeEmpty())
		Expect(r.Warnings).To(BeEmpty())
		Expect(r.Services).NotTo(BeEmpty())
		for _, svc := range r.Services {
			for _, p := range svc.Ports {
				Expect(p.Cluster).NotTo(BeEmpty(), p.ID.String())
			}
		}
	})
})
