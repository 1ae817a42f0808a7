package manifest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/usherproxy/usher/config"
)

var _ = Describe("100 slices of 1,000 invalid endpoints", func() {
	write := func(dir, name string, object map[string]any) {
		GinkgoHelper()
		text, err := json.Marshal(object)
		Expect(err).NotTo(HaveOccurred())
		Expect(os.WriteFile(filepath.Join(dir, name+".json"), text, 0o600)).To(Succeed())
	}
	slice := func(i int, addr string) map[string]any {
		var endpoints []any
		for range 1000 {
			endpoints = append(endpoints, map[string]any{"addresses": []string{addr}})
		}
		return map[string]any{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "endpoints": endpoints, "ports": []any{map[string]any{"port": 8080}},
			"metadata": map[string]any{"name": fmt.Sprintf("web-%02d", i), "labels": map[string]string{"kubernetes.io/service-name": "web"}}}
	}

	DescribeTable("are reported in a few lines, and other Services are served", func(addr, said string, lines int) {
		dir := GinkgoT().TempDir()
		for _, name := range []string{"web", "other"} {
			write(dir, name, map[string]any{"apiVersion": "v1", "kind": "Service", "metadata": map[string]any{"name": name}, "spec": map[string]any{"ports": []any{map[string]any{"port": 80}}}})
		}
		for i := range 100 {
			write(dir, fmt.Sprintf("slice-%02d", i), slice(i, addr))
		}
		log, logged := logtest.NewNullLogger()
		s, err := New(Options{Paths: []string{dir}, Log: log})
		Expect(err).NotTo(HaveOccurred())
		var served []config.Service
		s.reload(list([]string{dir}), func(all []config.Service) { served = all }, true)
		Expect(served).To(HaveLen(2))

		var text strings.Builder
		for _, e := range logged.AllEntries() {
			text.WriteString(e.Message + "\n")
		}
		Expect(text.String()).To(ContainSubstring(said))
		Expect(len(logged.AllEntries())).To(BeNumerically("<=", lines), text.String())
	},
		Entry("rejected by usher: once for the Service", "239.0.0.1", "and 99999 more of this kind", 10),
		Entry("rejected by the API: once for each object", "169.254.1.1", "and 999 more of this kind", 110),
	)
})
