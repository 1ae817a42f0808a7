package translate_test

import (
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/translate"
)

var _ = Describe("the probe of a Service port", func() {
	const aws = "service.beta.kubernetes.io/aws-load-balancer-healthcheck-"
	ofNode := config.Probe{Check: config.Check{Kind: config.CheckHTTPS, Path: "/node"}, Interval: 10 * time.Second, Timeout: 5 * time.Second, Rise: 2, Fall: 3}
	onNode := translate.Options{Policy: config.Policy{Probe: ofNode}}
	// probes translates annotations, each given as NAME=VALUE without the prefix of NAME.
	probes := func(protocol corev1.Protocol, annotations ...string) (config.Probe, []translate.Problem) {
		svc := service(func(svc *corev1.Service) {
			svc.Annotations = map[string]string{}
			for _, a := range annotations {
				name, value, _ := strings.Cut(a, "=")
				if prefix := "usher.io/"; strings.HasPrefix(name, "probe") {
					svc.Annotations[prefix+name] = value
				} else {
					svc.Annotations[aws+name] = value
				}
			}
			svc.Spec.Type = corev1.ServiceTypeLoadBalancer
			svc.Spec.HealthCheckNodePort = 30254
			svc.Spec.Ports = []corev1.ServicePort{{Port: 80, NodePort: 30080, Protocol: protocol}}
		})
		out, problems := translate.Service(svc, nil, config.Node{}, onNode)
		return out.Ports[0].Probe, problems
	}

	DescribeTable("is set by annotations", func(want string, annotations ...string) {
		got, problems := probes(corev1.ProtocolTCP, annotations...)
		Expect(problems).To(BeEmpty())
		Expect(got.Check.String()).To(Equal(want))
		var again config.Check
		Expect(again.UnmarshalText([]byte(want))).To(Succeed())
		Expect(again).To(Equal(got.Check))
	},
		Entry("no annotations", "https:/node"),
		Entry(nil, "none", "probe=none"),
		Entry(nil, "tcp", "probe=tcp"),
		Entry(nil, "tcp:8081", "probe=tcp:8081"),
		Entry(nil, "http:/healthz", "probe=http:/healthz"),
		Entry(nil, "http:/healthz:8081", "probe=http:/healthz:8081"),
		Entry(nil, "http:/a:b?c=d:e", "probe=http:/a:b?c=d:e"),
		Entry(nil, "https:/:8443", "probe=https:/:8443"),
		Entry("TCP in AWS's form", "tcp", "protocol=TCP", "path=/x"),
		Entry("HTTP in AWS's form, on the traffic port", "http:/", "protocol=HTTP", "port=traffic-port"),
		Entry("HTTPS in AWS's form, with path and port", "https:/healthz:8443", "protocol=https", "path=/healthz", "port=8443"),
		Entry("a path in AWS's form", "http:/healthz", "path=/healthz"),
		Entry("usher's annotation overrides AWS's", "none", "probe=none", "protocol=HTTP", "path=/healthz", "port=1"),
		Entry("the default: AWS's form, for the Service's health check node port", "https:/node", "protocol=HTTP", "path=/healthz", "port=30254"),
		Entry("the default: AWS's form, for kube-proxy's health port", "https:/node", "protocol=HTTP", "path=/healthz", "port=10256"),
		Entry("the default: AWS's form, for a node port", "https:/node", "protocol=TCP", "port=30080"),
		Entry("the default: only a port in AWS's form", "https:/node", "port=8081"),
	)

	It("is none if AWS's load balancer checks the health check node port", func() {
		svc := service(func(svc *corev1.Service) {
			svc.Annotations = map[string]string{aws + "protocol": "HTTP", aws + "path": "/healthz"}
			svc.Spec.Type, svc.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
			svc.Spec.HealthCheckNodePort = 30254
			svc.Spec.Ports = []corev1.ServicePort{{Port: 80, NodePort: 30080, Protocol: corev1.ProtocolTCP}}
		})
		out, problems := translate.Service(svc, nil, config.Node{}, translate.Options{})
		Expect(problems).To(BeEmpty())
		Expect(out.Ports[0].Probe).To(BeZero())
		svc.Annotations[aws+"port"] = "traffic-port"
		out, _ = translate.Service(svc, nil, config.Node{}, translate.Options{})
		Expect(out.Ports[0].Probe.Check.String()).To(Equal("http:/healthz"))
	})

	It("has the interval, timeout and thresholds that annotations set", func() {
		got, problems := probes(corev1.ProtocolTCP, "probe=tcp", "probe-interval=1m", "probe-timeout=100ms", "probe-rise=1", "probe-fall=100")
		Expect(problems).To(BeEmpty())
		Expect(got).To(Equal(config.Probe{Check: config.Check{Kind: config.CheckTCP}, Interval: time.Minute, Timeout: 100 * time.Millisecond, Rise: 1, Fall: 100}))
		got, problems = probes(corev1.ProtocolTCP, "interval=20", "timeout=3", "healthy-threshold=4", "unhealthy-threshold=5", "probe-fall=6")
		Expect(problems).To(BeEmpty())
		Expect(got).To(Equal(config.Probe{Check: ofNode.Check, Interval: 20 * time.Second, Timeout: 3 * time.Second, Rise: 4, Fall: 6}))
	})

	DescribeTable("is the default if an annotation is invalid, which is reported", func(annotation, message string) {
		got, problems := probes(corev1.ProtocolTCP, annotation)
		Expect(got).To(Equal(ofNode))
		Expect(problems).To(ConsistOf(MatchError(ContainSubstring(message))))
	},
		Entry(nil, "probe=icmp", `metadata.annotations[usher.io/probe]: Invalid value: "icmp": must be none, tcp[:PORT], http:/PATH[:PORT] or https:/PATH[:PORT]; the default is used`),
		Entry(nil, "probe=", `Invalid value: "": must be none`),
		Entry(nil, "probe=none:80", `must be none`),
		Entry(nil, "probe=tcp:", `must be none`),
		Entry(nil, "probe=tcp:0", `must be none`),
		Entry(nil, "probe=tcp:70000", `must be none`),
		Entry(nil, "probe=tcp:/x:80", `must be none`),
		Entry(nil, "probe=http", `must be none`),
		Entry(nil, "probe=http:healthz", `must be none`),
		Entry(nil, "probe=http:8080/healthz", `must be none`),
		Entry(nil, "probe=http:/healthz:", `must be none`),
		Entry(nil, "probe=http:/healthz:70000", `must be none`),
		Entry(nil, "probe=http:/x y", `must be none`),
		Entry(nil, "probe=http:/%zz", `must be none`),
		Entry(nil, "probe=http:/"+strings.Repeat("x", 1024), `must be none`),
		Entry(nil, "probe-interval=10", `[usher.io/probe-interval]: Invalid value: "10": must be a duration from 1s to 1h, such as 30s; the default is used`),
		Entry(nil, "probe-interval=999ms", `must be a duration from 1s to 1h`),
		Entry(nil, "probe-timeout=2h", `must be a duration from 100ms to 2m`),
		Entry(nil, "probe-rise=0", `[usher.io/probe-rise]: Invalid value: "0": must be a number from 1 to 100; the default is used`),
		Entry(nil, "probe-fall=many", `must be a number from 1 to 100`),
		Entry(nil, "probe-often=1", `Unsupported value: "usher.io/probe-often"`),
		Entry(nil, "interval=10s", `[`+aws+`interval]: Invalid value: "10s": must be a number of seconds from 1 to 3600; the default is used`),
		Entry(nil, "timeout=500m", `must be a number of seconds from 1 to 120`),
		Entry(nil, "unhealthy-threshold=-1", `must be a number from 1 to 100`),
		Entry(nil, "protocol=UDP", `[`+aws+`protocol]: Unsupported value: "UDP": supported values: "HTTP", "HTTPS", "TCP"`),
		Entry(nil, "path=healthz", `[`+aws+`path]: Invalid value: "healthz": must be a path such as /healthz; the default is used`),
	)

	It("is the default if AWS's port annotation is invalid, which is reported", func() {
		got, problems := probes(corev1.ProtocolTCP, "protocol=TCP", "port=http")
		Expect(got).To(Equal(ofNode))
		Expect(problems).To(ConsistOf(MatchError(ContainSubstring(`[` + aws + `port]: Invalid value: "http": must be traffic-port or a number from 1 to 65535; the default is used`))))
	})

	It("needs a TCP port number if the Service port is UDP or SCTP", func() {
		for _, protocol := range []corev1.Protocol{corev1.ProtocolUDP, corev1.ProtocolSCTP} {
			got, problems := probes(protocol, "probe=tcp:53")
			Expect(problems).To(BeEmpty())
			Expect(got.Check.String()).To(Equal("tcp:53"))
			got, problems = probes(protocol, "probe=tcp")
			Expect(got.Check.String()).To(Equal("none"))
			Expect(problems).To(ConsistOf(MatchError(ContainSubstring("must name a TCP port to probe, such as tcp:8080, for the " + string(protocol) + " port at spec.ports[0]; its endpoints are not probed"))))
			for _, withoutPort := range [][]string{{"protocol=HTTP", "path=/healthz"}, {}} { // in AWS's form, and the node's default
				got, problems = probes(protocol, withoutPort...)
				Expect(got).To(BeZero())
				Expect(problems).To(BeEmpty())
			}
		}
	})
})
