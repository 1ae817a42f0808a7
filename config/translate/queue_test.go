package translate_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/translate"
)

var _ = Describe("the connection limit per endpoint", func() {
	annotated := func(protocol corev1.Protocol, name, value string) (config.ServicePort, []translate.Problem) {
		out, problems := translate.Service(service(func(svc *corev1.Service) {
			svc.Annotations = map[string]string{name: value}
			svc.Spec.Ports[0].Protocol = protocol
		}), nil, config.Node{}, translate.Options{Policy: config.Policy{EndpointLimit: 7, QueueTimeout: time.Hour}})
		return out.Ports[0], problems
	}
	DescribeTable("is set by the annotation", func(text string, want int) {
		port, problems := annotated(corev1.ProtocolTCP, "usher.io/max-connections-per-endpoint", text)
		Expect(problems).To(BeEmpty())
		Expect(port.EndpointLimit).To(Equal(want))
		port, _ = annotated(corev1.ProtocolSCTP, "usher.io/max-connections-per-endpoint", text)
		Expect(port.EndpointLimit).To(Equal(want))
		port, _ = annotated(corev1.ProtocolUDP, "usher.io/max-connections-per-endpoint", text)
		Expect(port.EndpointLimit).To(BeZero(), "UDP")
	},
		Entry("one", "1", 1), Entry("the maximum", "1000000", 1000000), Entry("0, for no limit", "0", 0))

	It("is the default if the annotation is invalid, which is reported", func() {
		for _, text := range []string{"", "-1", "many", "1000001", "1.5"} {
			port, problems := annotated(corev1.ProtocolTCP, "usher.io/max-connections-per-endpoint", text)
			Expect(port.EndpointLimit).To(Equal(7))
			Expect(problems).To(ConsistOf(MatchError(ContainSubstring(`Service default/web: metadata.annotations[usher.io/max-connections-per-endpoint]: Invalid value: "` + text + `": must be 0 or a number from 1 to 1000000; the default is used`))))
		}
	})

	It("comes with a queue timeout, set by its own annotation", func() {
		port, problems := annotated(corev1.ProtocolTCP, "usher.io/queue-timeout", "5s")
		Expect(problems).To(BeEmpty())
		Expect(port.QueueTimeout).To(Equal(5 * time.Second))
		port, problems = annotated(corev1.ProtocolTCP, "usher.io/queue-timeout", "soon")
		Expect(port.QueueTimeout).To(Equal(time.Hour))
		Expect(problems).To(ConsistOf(MatchError(ContainSubstring(`[usher.io/queue-timeout]: Invalid value: "soon": must be a duration from 1s to 24h`))))
	})
})
