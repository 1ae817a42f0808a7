package translate

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/usherproxy/usher/config"
)

func TestUDPIdleTimeoutComesFromTheAnnotation(t *testing.T) {
	const ofNode, unanswered = 2 * time.Minute, time.Minute
	for _, c := range []struct {
		annotation string
		want       time.Duration
		problem    string
	}{
		{"30s", 30 * time.Second, ""},
		{"24h", 24 * time.Hour, ""},
		{"999ms", ofNode, `Service default/dns: metadata.annotations[usher.io/udp-idle-timeout]: Invalid value: "999ms": must be a duration from 1s to 24h, such as 30s; the default is used`},
		{"-5s", ofNode, "must be a duration"},
		{"soon", ofNode, "must be a duration"},
	} {
		g := NewWithT(t)
		svc := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "dns", Annotations: map[string]string{"usher.io/udp-idle-timeout": c.annotation}},
			Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.10", Ports: []corev1.ServicePort{
				{Name: "tcp", Port: 53, Protocol: corev1.ProtocolTCP}, {Name: "udp", Port: 53, Protocol: corev1.ProtocolUDP}}},
		}
		served, problems := Service(svc, nil, config.Node{}, Options{Policy: config.DefaultPolicy()})
		g.Expect(served.Ports[0].UDPIdleTimeout).To(BeZero(), "not for TCP")
		g.Expect(served.Ports[1].UDPIdleTimeout).To(Equal(c.want), c.annotation)
		if c.problem == "" {
			g.Expect(problems).To(BeEmpty())
			g.Expect(served.Ports[1].UnansweredTimeout).To(Equal(c.want))
			continue
		}
		g.Expect(served.Ports[1].UnansweredTimeout).To(Equal(unanswered))
		g.Expect(problems).To(HaveLen(1))
		g.Expect(problems[0].Error()).To(ContainSubstring(c.problem))
	}
}

func TestClientAddressComesFromTheAnnotation(t *testing.T) {
	for _, c := range []struct {
		annotations map[string]string
		node        bool
		problem     string
	}{
		{nil, false, ""},
		{map[string]string{AnnotationClientAddress: "node", "forbidden": ""}, false,
			`metadata.annotations[usher.io/client-address]: Forbidden: ignored because of --client-address-annotation=false`},
		{map[string]string{AnnotationClientAddress: "auto"}, false, ""},
		{map[string]string{AnnotationClientAddress: "auto", "all": ""}, false,
			`metadata.annotations[usher.io/client-address]: Forbidden: ignored because of --client-address=node`},
		{map[string]string{AnnotationClientAddress: "node", "all": ""}, true, ""},
		{map[string]string{AnnotationClientAddress: "node"}, true, ""},
		{map[string]string{AnnotationClientAddress: "client"}, false,
			`Service default/dns: metadata.annotations[usher.io/client-address]: Unsupported value: "client": supported values: "auto", "node"`},
		{map[string]string{AnnotationClientAddress: ""}, false, `Unsupported value: "": supported values: "auto", "node"`},
	} {
		g := NewWithT(t)
		svc := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "dns", Annotations: c.annotations},
			Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.10", Ports: []corev1.ServicePort{
				{Name: "tcp", Port: 53, Protocol: corev1.ProtocolTCP}, {Name: "udp", Port: 53, Protocol: corev1.ProtocolUDP}}},
		}
		_, forbidden := c.annotations["forbidden"]
		_, all := c.annotations["all"]
		served, problems := Service(svc, nil, config.Node{}, Options{NoClientAddress: forbidden, NodeAddress: all})
		for _, p := range served.Ports {
			g.Expect(p.NodeAddress).To(Equal(c.node), "%v", c.annotations)
		}
		if c.problem == "" {
			g.Expect(problems).To(BeEmpty())
			continue
		}
		g.Expect(problems).To(ConsistOf(MatchError(ContainSubstring(c.problem))))
	}
}

func TestIdleTimeoutAndMaxAgeComeFromAnnotations(t *testing.T) {
	g := NewWithT(t)
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "dns", Annotations: map[string]string{
			"usher.io/connection-idle-timeout": "10m", "usher.io/max-connection-age": "1h"}},
		Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.10", Ports: []corev1.ServicePort{
			{Name: "tcp", Port: 53, Protocol: corev1.ProtocolTCP}, {Name: "udp", Port: 53, Protocol: corev1.ProtocolUDP}}},
	}
	served, problems := Service(svc, nil, config.Node{}, Options{})
	g.Expect(problems).To(BeEmpty())
	g.Expect([]time.Duration{served.Ports[0].IdleTimeout, served.Ports[0].MaxAge}).To(Equal([]time.Duration{10 * time.Minute, time.Hour}))
	g.Expect([]time.Duration{served.Ports[1].IdleTimeout, served.Ports[1].MaxAge}).To(Equal([]time.Duration{0, 0}), "not for UDP")

	svc.Annotations["usher.io/max-connection-age"] = "25h"
	served, problems = Service(svc, nil, config.Node{}, Options{})
	g.Expect(problems).To(ConsistOf(MatchError(ContainSubstring(`metadata.annotations[usher.io/max-connection-age]: Invalid value: "25h"`))))
	g.Expect(served.Ports[0].MaxAge).To(BeZero())
}

func TestUnknownAnnotationsAreReported(t *testing.T) {
	g := NewWithT(t)
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: map[string]string{"usher.io/idle-timeout": "5s", "usher.io/retries": "3", "example.com/idle-timeout": "5s"}},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.10", Ports: []corev1.ServicePort{{Port: 80}}},
	}
	served, problems := Service(svc, nil, config.Node{}, Options{})
	g.Expect(served.Ports).To(HaveLen(1))
	g.Expect(problems).To(HaveExactElements(
		MatchError(HavePrefix(`Service default/web: metadata.annotations: Unsupported value: "usher.io/idle-timeout": supported values: "usher.io/accept-proxy-protocol", `)),
		MatchError(HavePrefix(`Service default/web: metadata.annotations: Unsupported value: "usher.io/retries": `))))
}

func TestManyErrorsInOneLongValueTakeLittleMemory(t *testing.T) {
	g := NewWithT(t)
	var weights []string
	for i := range 50_000 {
		weights = append(weights, fmt.Sprintf("%x", i))
	}
	text := strings.Join(weights, ",")
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: map[string]string{AnnotationWeight: text, AnnotationAcceptProxyProtocol: text}},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.10", Ports: []corev1.ServicePort{{Port: 80}}},
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, problems := Service(svc, nil, config.Node{}, Options{})
	runtime.ReadMemStats(&after)
	g.Expect(len(problems)).To(BeNumerically(">", 1))
	g.Expect(after.TotalAlloc - before.TotalAlloc).To(BeNumerically("<", 1<<30))
}
