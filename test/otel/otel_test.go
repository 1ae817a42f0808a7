package otel

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
)

func TestOpenTelemetry(t *testing.T) {
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(30 * time.Second)
	RunSpecs(t, "test/otel")
}

var usherBinary string

var _ = BeforeSuite(func() {
	usherBinary = filepath.Join(GinkgoT().TempDir(), "usher")
	build := exec.Command("go", "build", "-C", "../..", "-race", "-o", usherBinary, "./cmd/usher")
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	out, err := build.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
})

// collector starts a Collector's receiver and returns what it has received.
func collector(address string) *consumertest.TracesSink {
	GinkgoHelper()
	sink, factory := new(consumertest.TracesSink), otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig()
	settings := map[string]any{"protocols": map[string]any{"http": map[string]any{"endpoint": address}}}
	Expect(confmap.NewFromStringMap(settings).Unmarshal(config)).To(Succeed())
	r, err := factory.CreateTraces(context.Background(), receivertest.NewNopSettings(factory.Type()), config, sink)
	Expect(err).NotTo(HaveOccurred())
	Expect(r.Start(context.Background(), componenttest.NewNopHost())).To(Succeed())
	DeferCleanup(func() { Expect(r.Shutdown(context.Background())).To(Succeed()) })
	return sink
}

// span is what was received of a span.
type span struct {
	name, parent, id string
	status           ptrace.StatusCode
	took             time.Duration
	attributes       map[string]any
	resource         map[string]any
}

func received(sink *consumertest.TracesSink) (list []span) {
	for _, traces := range sink.AllTraces() {
		for _, of := range traces.ResourceSpans().All() {
			for _, scope := range of.ScopeSpans().All() {
				for _, s := range scope.Spans().All() {
					list = append(list, span{s.Name(), s.ParentSpanID().String(), s.SpanID().String(), s.Status().Code(),
						s.EndTimestamp().AsTime().Sub(s.StartTimestamp().AsTime()), raw(s.Attributes()), raw(of.Resource().Attributes())})
				}
			}
		}
	}
	return list
}

func raw(m pcommon.Map) map[string]any { return m.AsRaw() }

// of returns the span of a connection to a Service, and those of its attempts.
func of(sink *consumertest.TracesSink, service string) (connection *span, attempts []span) {
	all := received(sink)
	for i := range all {
		if all[i].parent == "" && all[i].attributes["usher.service"] == service {
			connection = &all[i]
		}
	}
	for _, s := range all {
		if connection != nil && s.parent == connection.id {
			attempts = append(attempts, s)
		}
	}
	return connection, attempts
}

// usher is 'usher run' on manifests, with variables in its environment.
type usher struct {
	*gexec.Session
	url string
}

func run(manifests string, environment ...string) *usher {
	GinkgoHelper()
	dir, address := GinkgoT().TempDir(), free()
	Expect(os.WriteFile(filepath.Join(dir, "all.yaml"), []byte(manifests), 0o644)).To(Succeed())
	cmd := exec.Command(usherBinary, "run", "--manifests", dir, "--portal=none", "--admin-address", address, "--log-format=text", "--udp-idle-timeout=1s", "--node-name=worker-1", "--slow=0") // nothing is slow, on a busy machine either
	cmd.Env = append(os.Environ(), append([]string{"OTEL_BSP_SCHEDULE_DELAY=100"}, environment...)...)
	session, err := gexec.Start(cmd, GinkgoWriter, GinkgoWriter)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() {
		session.Terminate().Wait(30 * time.Second)
		Expect(string(session.Err.Contents())).NotTo(Or(ContainSubstring("DATA RACE"), ContainSubstring("panic:")))
	})
	Eventually(session.Err).Should(gbytes.Say("Serving"))
	return &usher{session, "http://" + address}
}

// get returns what usher's admin server has at path.
func (u *usher) get(path string) string {
	GinkgoHelper()
	response, err := http.Get(u.url + path)
	Expect(err).NotTo(HaveOccurred())
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	Expect(err).NotTo(HaveOccurred())
	return string(body)
}

// call makes a connection, or UDP session, to a Service, and returns what is answered.
func (u *usher) call(network, service string) string {
	GinkgoHelper()
	var answer struct{ Ports []struct{ Listener string } }
	Expect(json.Unmarshal([]byte(u.get("/api/v1/services/default/"+service)), &answer)).To(Succeed())
	c, err := net.Dial(network, answer.Ports[0].Listener)
	Expect(err).NotTo(HaveOccurred())
	defer c.Close()
	Expect(c.SetDeadline(time.Now().Add(20 * time.Second))).To(Succeed())
	_, _ = io.WriteString(c, "hello") // it may be reset already
	buf := make([]byte, 100)
	n, _ := c.Read(buf)
	return string(buf[:n])
}

// free returns an address on which nobody listens. Who lets the kernel choose, such as the suites
// beside this one, has ports from 32768 on.
func free() string {
	GinkgoHelper()
	for {
		freed++
		address := fmt.Sprintf("127.0.0.1:%d", 20000+(os.Getpid()*32+freed)%12000)
		if l, err := net.Listen("tcp", address); err == nil {
			Expect(l.Close()).To(Succeed())
			return address
		}
	}
}

var freed int // addresses so far

// refusing returns an endpoint that refuses connections: the port is that of a
// connected socket, so nobody else can listen on it.
func refusing() string {
	GinkgoHelper()
	c, err := net.Dial("tcp", answering("127.0.0.1:0"))
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(c.Close)
	return c.LocalAddr().String()
}

// answering returns an endpoint that says hello and closes.
func answering(address string) string {
	GinkgoHelper()
	l, err := net.Listen("tcp", address)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(l.Close)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // the test is over
			}
			_, _ = c.Read(make([]byte, 100))
			_, _ = fmt.Fprint(c, "hello")
			c.Close()
		}
	}()
	return l.Addr().String()
}

// echo returns an endpoint of UDP that sends back what it gets.
func echo() string {
	GinkgoHelper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(c.Close)
	go func() {
		buf := make([]byte, 100)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return // the test is over
			}
			_, _ = c.WriteTo(buf[:n], from)
		}
	}()
	return c.LocalAddr().String()
}

// service returns the manifests of a Service with these endpoints.
func service(name, vip, protocol string, endpoints ...string) string {
	GinkgoHelper()
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: default}\nspec: {clusterIP: %q, ports: [{name: main, port: 80, protocol: %s}]}\n---\n", name, vip, protocol)
	for i, e := range endpoints {
		host, port, err := net.SplitHostPort(e)
		Expect(err).NotTo(HaveOccurred())
		family := "IPv4"
		if strings.Contains(host, ":") {
			family = "IPv6"
		}
		fmt.Fprintf(&b, "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %s-%d, namespace: default, labels: {kubernetes.io/service-name: %s}}\n", name, i, name)
		fmt.Fprintf(&b, "addressType: %s\nports: [{name: main, port: %s, protocol: %s}]\nendpoints: [{addresses: [%q], targetRef: {kind: Pod, name: %s-%d, namespace: default}}]\n---\n", family, port, protocol, host, name, i)
	}
	return b.String()
}

var _ = Describe("OpenTelemetry", func() {
	It("is told of connections that failed or were retried, and of no others", func() {
		address := free()
		sink := collector(address)
		u := run(service("good", "10.96.0.1", "TCP", answering("127.0.0.1:0"))+
			service("half", "10.96.0.2", "TCP", answering("127.0.0.1:0"), refusing())+
			service("dead", "10.96.0.3", "TCP", refusing()),
			"OTEL_EXPORTER_OTLP_ENDPOINT=http://"+address, "OTEL_RESOURCE_ATTRIBUTES=deployment.environment.name=test")
		Expect(u.call("tcp", "good")).To(Equal("hello"))
		for range 2 { // one of the two endpoints refuses
			Expect(u.call("tcp", "half")).To(Equal("hello"))
		}
		Expect(u.call("tcp", "dead")).To(BeEmpty())

		var connection *span
		var attempts []span
		Eventually(func() *span { connection, attempts = of(sink, "half"); return connection }).ShouldNot(BeNil())
		Expect(connection.name).To(Equal("default/half:main"))
		Expect(connection.status).To(Equal(ptrace.StatusCodeUnset))
		Expect(connection.attributes).To(And(
			HaveKeyWithValue("client.address", "127.0.0.1"), HaveKeyWithValue("server.address", HavePrefix("127.")), HaveKeyWithValue("server.port", BeNumerically(">", 0)),
			HaveKeyWithValue("network.transport", "tcp"), HaveKeyWithValue("network.type", "ipv4"), HaveKeyWithValue("k8s.namespace.name", "default"),
			HaveKeyWithValue("usher.attempts", BeEquivalentTo(2)), HaveKeyWithValue("usher.bytes_to_client", BeEquivalentTo(5)), HaveKey("client.port"), Not(HaveKey("error.type"))))
		Expect(connection.resource).To(And(HaveKeyWithValue("service.name", "usher"), HaveKey("service.version"), HaveKey("host.name"),
			HaveKeyWithValue("k8s.node.name", "worker-1"), HaveKeyWithValue("deployment.environment.name", "test")))
		Expect(connection.attributes["usher.outcome"]).To(ContainElement("retried"))
		Expect(attempts).To(HaveLen(2))
		Expect(attempts[0].attributes).To(And(HaveKeyWithValue("error.type", "refused"), HaveKeyWithValue("k8s.pod.name", "half-1"), HaveKeyWithValue("network.peer.address", "127.0.0.1")))
		Expect(attempts[0].status).To(Equal(ptrace.StatusCodeError))
		Expect(attempts[1].attributes).To(And(HaveKeyWithValue("usher.result", "connected"), HaveKeyWithValue("k8s.pod.name", "half-0")))
		Expect(attempts[1].took).To(BeNumerically("<=", connection.took))

		Eventually(func() *span { connection, attempts = of(sink, "dead"); return connection }).ShouldNot(BeNil())
		Expect(connection.status).To(Equal(ptrace.StatusCodeError))
		Expect(connection.attributes).To(HaveKeyWithValue("error.type", "attempts-failed"))
		Expect(len(attempts)).To(BeNumerically(">=", 1))
		good, _ := of(sink, "good")
		Expect(good).To(BeNil())
	})

	It("is told of all, both families and UDP, if the sampler takes all", func() {
		address := free()
		sink := collector(address)
		u := run(service("four", "10.96.0.1", "TCP", answering("127.0.0.1:0"))+service("six", "fd00:96::2", "TCP", answering("[::1]:0"))+service("dns", "10.96.0.3", "UDP", echo()),
			"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://"+address+"/v1/traces", "OTEL_TRACES_SAMPLER=traceidratio", "OTEL_TRACES_SAMPLER_ARG=1.0", "OTEL_SERVICE_NAME=edge")
		for name, network := range map[string]string{"four": "tcp", "six": "tcp", "dns": "udp"} {
			Expect(u.call(network, name)).To(Equal("hello"))
			var connection *span
			var attempts []span
			Eventually(func() *span { connection, attempts = of(sink, name); return connection }).ShouldNot(BeNil(), name)
			Expect(connection.attributes).To(And(HaveKeyWithValue("network.transport", network), HaveKeyWithValue("usher.attempts", BeEquivalentTo(1))))
			Expect(connection.resource).To(HaveKeyWithValue("service.name", "edge"))
			Expect(attempts).To(HaveLen(1))
			if name == "six" {
				Expect(connection.attributes).To(And(HaveKeyWithValue("server.address", "::1"), HaveKeyWithValue("network.type", "ipv6")))
				Expect(attempts[0].attributes).To(HaveKeyWithValue("server.address", "::1"))
			}
		}
		Eventually(func() string { return u.get("/metrics") }).Should(ContainSubstring("usher_opentelemetry_connections_exported_total 3"))
	})

	It("loses what it cannot send, says so, and goes on when the Collector is back", func() {
		address := free()
		u := run(service("dead", "10.96.0.3", "TCP", refusing()), "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+address)
		u.call("tcp", "dead")
		Eventually(u.Err).Should(gbytes.Say("Spans cannot be exported"))
		Eventually(func() string { return u.get("/metrics") }).Should(ContainSubstring("usher_opentelemetry_connections_lost_total 1"))
		sink := collector(address)
		u.call("tcp", "dead")
		Eventually(func() *span { connection, _ := of(sink, "dead"); return connection }).ShouldNot(BeNil())
	})

	It("is told of the last ones when usher ends", func() {
		address := free()
		sink := collector(address)
		u := run(service("dead", "10.96.0.3", "TCP", refusing()), "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+address, "OTEL_BSP_SCHEDULE_DELAY=60000")
		u.call("tcp", "dead")
		u.Terminate().Wait(30 * time.Second)
		connection, _ := of(sink, "dead")
		Expect(connection).NotTo(BeNil())
	})

	DescribeTable("is not told if the environment has what cannot be done: usher says so, and serves", func(variable, want string) {
		u := run(service("good", "10.96.0.1", "TCP", answering("127.0.0.1:0")), append([]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318"}, strings.Fields(variable)...)...)
		Expect(u.call("tcp", "good")).To(Equal("hello"))
		Expect(strings.ReplaceAll(string(u.Err.Contents()), `\"`, `"`)).To(And(ContainSubstring("no spans are sent"), ContainSubstring(want)))
		Expect(u.get("/metrics")).NotTo(ContainSubstring("usher_opentelemetry_"))
	},
		Entry(nil, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", `OTEL_EXPORTER_OTLP_PROTOCOL: "grpc" is none of http/protobuf`),
		Entry(nil, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=collector:4318", `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: "collector:4318" is not a URL such as http://collector:4318`),
		Entry(nil, "OTEL_TRACES_SAMPLER=some", `OTEL_TRACES_SAMPLER: "some" is none of always_on, `),
		Entry(nil, "OTEL_TRACES_SAMPLER=traceidratio OTEL_TRACES_SAMPLER_ARG=2", `OTEL_TRACES_SAMPLER_ARG: "2" is not a number from 0 to 1`),
		Entry(nil, "OTEL_TRACES_EXPORTER=jaeger", `OTEL_TRACES_EXPORTER: "jaeger" is none of otlp, none`),
	)
})
