package translate_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/translate"
)

var _ = Describe("endpoint selection", func() {
	annotated := func(name, value string) (config.ServicePort, []translate.Problem) {
		svc := service(func(svc *corev1.Service) { svc.Annotations = map[string]string{name: value} })
		pod := func(name string) func(*discoveryv1.Endpoint) {
			return func(e *discoveryv1.Endpoint) { e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: name} }
		}
		all := []*discoveryv1.EndpointSlice{slice("a", endpoint("10.0.0.1", pod("web-0")), endpoint("10.0.0.2", pod("web-1")), endpoint("10.0.0.3"))}
		out, problems := translate.Service(svc, all, config.Node{}, translate.Options{})
		return out.Ports[0], problems
	}

	It("uses the scheduler that the annotation names", func() {
		for _, name := range config.SchedulerNames() {
			port, problems := annotated("usher.io/scheduler", name)
			Expect(problems).To(BeEmpty())
			Expect(port.Scheduler.String()).To(Equal(name))
		}
	})

	It("uses the default if the scheduler is unknown, and reports the known ones", func() {
		port, problems := annotated("usher.io/scheduler", "best")
		Expect(port.Scheduler).To(BeZero())
		Expect(problems).To(ConsistOf(MatchError(`Service default/web: metadata.annotations[usher.io/scheduler]: Invalid value: "best": must be one of rr, random, lc, p2c, sed, nq, sh, dh, maglev, wrr, wlc; the default is used`)))
	})

	DescribeTable("uses the weights in the annotation", func(annotation string, want []int, wrong ...string) {
		port, problems := annotated(translate.AnnotationWeight, annotation)
		var got []int
		for _, e := range port.Endpoints {
			got = append(got, e.Weight.Int())
		}
		Expect(got).To(Equal(want))
		Expect(problems).To(HaveLen(len(wrong)))
		for i, p := range problems {
			Expect(p).To(MatchError(ContainSubstring(wrong[i])))
		}
	},
		Entry("for Pods and addresses", "web-0=3, 10.0.0.3=0", []int{3, 1, 0}),
		Entry("for Pods with their namespace", "default/web-0=3", []int{3, 1, 1}),
		Entry("for all other endpoints", "web-1=7,*=2", []int{2, 7, 2}),
		Entry("with address and port before address, and address before Pod", "web-0=1,10.0.0.1=2,10.0.0.1:8080=4,10.0.0.2:1=9", []int{4, 1, 1}),
		Entry("ignoring endpoints that do not exist", "web-9=5,10.9.9.9=1,[fd00::1]:80=1,fd00::1=1", []int{1, 1, 1}),
		Entry("up to the maximum", "*=256", []int{256, 256, 256}),
		Entry("ignoring invalid entries", "web-0=3,web-1=257,10.0.0.3=-1,=2,x", []int{3, 1, 1},
			`metadata.annotations[usher.io/weight]: Invalid value: "web-0=3,web-1=257,10.0.0.3=-1,=2,x": must be POD=WEIGHT or ADDRESS=WEIGHT, separated by commas, with weights from 0 to 256 (e.g. web-0=3,10.1.2.3=1,*=2); "web-1=257" is ignored`,
			`"10.0.0.3=-1" is ignored`, `"=2" is ignored`, `"x" is ignored`),
		Entry("ignoring duplicate entries", "web-0=3,web-0=4", []int{3, 1, 1}, `"web-0" appears twice; the first one is used`),
		Entry("ignoring duplicates in another form", "web-0=3,default/web-0=4,10.0.0.3=5,::ffff:10.0.0.3=6,*=2,*=7", []int{3, 2, 5}, `"default/web-0" appears twice`, `"::ffff:10.0.0.3" appears twice`, `"*" appears twice`),
		Entry("ignoring Pods of other namespaces and invalid names", "kube-system/web-0=3,Web=1", []int{1, 1, 1}, `"kube-system/web-0" is neither a Pod in the Service's namespace nor an address`, `"Web" is neither`),
		Entry("ignoring an empty value", "", []int{1, 1, 1}, `"" is ignored`),
	)

	It("excludes endpoints with weight 0, even if none remain", func() {
		port, _ := annotated(translate.AnnotationWeight, "web-0=0")
		Expect(port.Endpoints).To(HaveLen(3))
		Expect(port.Cluster).To(Equal(port.Endpoints[1:]))
		port, _ = annotated(translate.AnnotationWeight, "*=0")
		Expect(port.Cluster).To(BeEmpty())
		Expect(port.Internal).To(BeEmpty())
	})
})
