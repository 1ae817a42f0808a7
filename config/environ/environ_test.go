package environ_test

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os/exec"
	"slices"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/environ"
)

func TestEnviron(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "config/environ")
}

func service(namespace, name, clusterIP string, ports ...config.DiscoveryPort) config.Service {
	return config.Service{
		Name:      types.NamespacedName{Namespace: namespace, Name: name},
		Discovery: &config.Discovery{ClusterIPs: []netip.Addr{netip.MustParseAddr(clusterIP)}, Ports: ports},
	}
}

func strings(vars []environ.Variable) []string {
	var out []string
	for _, v := range vars {
		out = append(out, v.String())
	}
	return out
}

var http = config.DiscoveryPort{Protocol: config.TCP, Number: 80}

var _ = Describe("the variables of a Service", func() {
	It("are those that the kubelet sets, including Docker's", func() {
		s := service("default", "redis-primary", "10.0.0.11",
			config.DiscoveryPort{Name: "db-main", Protocol: config.TCP, Number: 6379}, config.DiscoveryPort{Name: "gossip", Protocol: config.UDP, Number: 7000})
		Expect(strings(environ.Of(s))).To(Equal([]string{
			"REDIS_PRIMARY_SERVICE_HOST=10.0.0.11",
			"REDIS_PRIMARY_SERVICE_PORT=6379",
			"REDIS_PRIMARY_SERVICE_PORT_DB_MAIN=6379",
			"REDIS_PRIMARY_SERVICE_PORT_GOSSIP=7000",
			"REDIS_PRIMARY_PORT=tcp://10.0.0.11:6379",
			"REDIS_PRIMARY_PORT_6379_TCP=tcp://10.0.0.11:6379",
			"REDIS_PRIMARY_PORT_6379_TCP_PROTO=tcp",
			"REDIS_PRIMARY_PORT_6379_TCP_PORT=6379",
			"REDIS_PRIMARY_PORT_6379_TCP_ADDR=10.0.0.11",
			"REDIS_PRIMARY_PORT_7000_UDP=udp://10.0.0.11:7000",
			"REDIS_PRIMARY_PORT_7000_UDP_PROTO=udp",
			"REDIS_PRIMARY_PORT_7000_UDP_PORT=7000",
			"REDIS_PRIMARY_PORT_7000_UDP_ADDR=10.0.0.11",
		}))
	})

	It("use the first of two cluster IPs, with brackets for IPv6 in URLs", func() {
		s := service("default", "web", "fd00::10", http)
		s.Discovery.ClusterIPs = append(s.Discovery.ClusterIPs, netip.MustParseAddr("10.0.0.1"))
		Expect(strings(environ.Of(s))).To(ContainElements("WEB_SERVICE_HOST=fd00::10", "WEB_PORT=tcp://[fd00::10]:80"))
	})

	It("are absent without a cluster IP", func() {
		Expect(environ.Of(config.Service{})).To(BeEmpty())
		Expect(environ.Of(config.Service{Discovery: &config.Discovery{Ports: []config.DiscoveryPort{http}}})).To(BeEmpty())
		Expect(environ.Of(config.Service{Discovery: &config.Discovery{ExternalName: "example.com"}})).To(BeEmpty())
	})
})

var _ = Describe("the variables of a Pod", func() {
	all := []config.Service{
		service("b", "web", "10.0.0.2", http),
		service("a", "web", "10.0.0.1", http),
		service("a", "db", "10.0.0.3", http),
		service("default", "kubernetes", "10.0.0.4", http),
		service("default", "other", "10.0.0.5", http),
	}
	hosts := func(vars []environ.Variable) []string {
		return slices.DeleteFunc(strings(vars), func(s string) bool { return !bytes.Contains([]byte(s), []byte("_SERVICE_HOST=")) })
	}

	It("are those of its namespace's Services and of the API server", func() {
		Expect(hosts(environ.OfPod(all, "a"))).To(Equal([]string{"DB_SERVICE_HOST=10.0.0.3", "KUBERNETES_SERVICE_HOST=10.0.0.4", "WEB_SERVICE_HOST=10.0.0.1"}))
		Expect(hosts(environ.OfPod(all, "none"))).To(Equal([]string{"KUBERNETES_SERVICE_HOST=10.0.0.4"}))
		Expect(hosts(environ.OfPod(all, "default"))).To(Equal([]string{"KUBERNETES_SERVICE_HOST=10.0.0.4", "OTHER_SERVICE_HOST=10.0.0.5"}))
	})

	It("prefer a Service named kubernetes in its namespace", func() {
		own := append(all, service("a", "kubernetes", "10.0.0.9", http))
		Expect(hosts(environ.OfPod(own, "a"))).To(ContainElement("KUBERNETES_SERVICE_HOST=10.0.0.9"))
	})

	It("can cover all namespaces, preferring the Pod's, then the first, for equal names", func() {
		Expect(hosts(environ.OfAll(all, "b"))).To(Equal([]string{"DB_SERVICE_HOST=10.0.0.3", "KUBERNETES_SERVICE_HOST=10.0.0.4", "OTHER_SERVICE_HOST=10.0.0.5", "WEB_SERVICE_HOST=10.0.0.2"}))
		Expect(hosts(environ.OfAll(all, "default"))).To(ContainElement("WEB_SERVICE_HOST=10.0.0.1"))
	})
})

var _ = Describe("written variables", func() {
	vars := append(environ.Of(service("default", "web", "fd00::10", http)), environ.Of(service("default", "3scale", "10.0.0.1", http))...)
	write := func(format environ.Format) (string, []string) {
		GinkgoHelper()
		var b bytes.Buffer
		left, err := environ.Write(&b, format, vars)
		Expect(err).NotTo(HaveOccurred())
		return b.String(), left
	}

	It("for a shell can be evaluated by it, except those with invalid names", func() {
		text, left := write(environ.Shell)
		Expect(left).To(HaveLen(7))
		Expect(left).To(HaveEach(HavePrefix("3SCALE_")))
		out, err := exec.Command("sh", "-euc", text+`printf %s "$WEB_PORT"; env`).CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), string(out))
		Expect(string(out)).To(And(HavePrefix("tcp://[fd00::10]:80"), ContainSubstring("\nWEB_SERVICE_HOST=fd00::10\n")))
	})

	It("for .env are unquoted lines", func() {
		text, left := write(environ.Dotenv)
		Expect(left).To(BeEmpty())
		Expect(text).To(And(ContainSubstring("WEB_PORT=tcp://[fd00::10]:80\n"), ContainSubstring("3SCALE_SERVICE_HOST=10.0.0.1\n")))
	})

	It("as JSON are an object", func() {
		text, left := write(environ.JSON)
		Expect(left).To(BeEmpty())
		var object map[string]string
		Expect(json.Unmarshal([]byte(text), &object)).To(Succeed())
		Expect(object).To(HaveLen(len(vars)))
		Expect(object).To(HaveKeyWithValue("WEB_SERVICE_PORT", "80"))
	})
})
