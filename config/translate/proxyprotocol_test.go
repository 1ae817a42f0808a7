package translate

import (
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/usherproxy/usher/config"
)

// annotatedService returns a Service with a port of each protocol and a VIP of each kind.
func annotatedService(annotations map[string]string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: annotations},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.10", Type: corev1.ServiceTypeLoadBalancer, ExternalIPs: []string{"192.0.2.80"},
			LoadBalancerSourceRanges: []string{"0.0.0.0/0"},
			Ports: []corev1.ServicePort{
				{Name: "a", Port: 80, NodePort: 30080, Protocol: corev1.ProtocolTCP}, {Name: "b", Port: 80, NodePort: 30080, Protocol: corev1.ProtocolUDP},
				{Name: "c", Port: 80, Protocol: corev1.ProtocolSCTP}},
		},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "192.0.2.90"}}}},
	}
}

func TestProxyProtocolComesFromTheAnnotation(t *testing.T) {
	const at = "Service default/web: metadata.annotations[usher.io/proxy-protocol]: Invalid value: "
	const sctp = "supports only TCP and UDP, not SCTP; endpoints of spec.ports[2] get no PROXY protocol header"
	for text, c := range map[string]struct {
		want     []config.ProxyProtocol // of TCP, UDP, SCTP
		problems []string
	}{
		"v1":   {[]config.ProxyProtocol{config.ProxyV1, 0, 0}, []string{at + `"v1": must be v2 for UDP, which v1 cannot carry; endpoints of spec.ports[1] get no header`, at + `"v1": ` + sctp}},
		" v2 ": {[]config.ProxyProtocol{config.ProxyV2, config.ProxyV2, 0}, []string{at + `"v2": ` + sctp}},
		"3":    {[]config.ProxyProtocol{0, 0, 0}, []string{at + `"3": must be v1 or v2; endpoints get no header`}},
	} {
		g := NewWithT(t)
		served, problems := Service(annotatedService(map[string]string{AnnotationProxyProtocol: text}), nil, config.Node{}, Options{})
		g.Expect([]config.ProxyProtocol{served.Ports[0].ProxyProtocol, served.Ports[1].ProxyProtocol, served.Ports[2].ProxyProtocol}).To(Equal(c.want), text)
		var said []string
		for _, p := range problems {
			said = append(said, p.Error())
		}
		g.Expect(said).To(Equal(c.problems), text)
	}
}

func TestLoadBalancersComeFromAnnotations(t *testing.T) {
	const ours, aws = AnnotationAcceptProxyProtocol, AnnotationAWSProxyProtocol
	flag := []netip.Prefix{netip.MustParsePrefix("10.3.0.0/16")}
	for _, c := range []struct {
		name        string
		annotations map[string]string
		flag        []netip.Prefix
		networks    []string
		problems    []string
	}{
		{name: "no annotations"},
		{name: "networks and an address", annotations: map[string]string{ours: "10.1.0.0/16, fd00::/64,192.0.2.7"}, networks: []string{"10.1.0.0/16", "fd00::/64", "192.0.2.7/32"}},
		{name: "invalid networks", annotations: map[string]string{ours: "10.1.0.0/16,10.2.0.0/33,"}, networks: []string{"10.1.0.0/16"}, problems: []string{
			`metadata.annotations[usher.io/accept-proxy-protocol]: Invalid value: "10.1.0.0/16,10.2.0.0/33,": must be networks of load balancers, separated by commas (e.g. 10.9.8.0/24,2001:db8::/64); "10.2.0.0/33" is not a network and is ignored`,
			`"" is not a network and is ignored`}},
		{name: "AWS's, with known load balancers", annotations: map[string]string{aws: "*"}, flag: flag, networks: []string{"10.3.0.0/16"}},
		{name: "AWS's, with unknown load balancers", annotations: map[string]string{aws: "*"}, problems: []string{
			`metadata.annotations[service.beta.kubernetes.io/aws-load-balancer-proxy-protocol]: Invalid value: "*": no header is accepted because the load balancer's networks are unknown; set --load-balancer-cidr for all Services, or the annotation usher.io/accept-proxy-protocol for this one`}},
		{name: "AWS's, for some back ends", annotations: map[string]string{aws: "a"}, flag: flag, problems: []string{`must be "*"; no header is accepted`}},
		{name: "AWS's and usher's", annotations: map[string]string{aws: "*", ours: "10.1.0.0/16"}, flag: flag, networks: []string{"10.1.0.0/16"}},
		{name: "no annotations, with known load balancers", flag: flag},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			served, problems := Service(annotatedService(c.annotations), nil, config.Node{}, Options{LoadBalancers: c.flag})
			g.Expect(problems).To(HaveLen(len(c.problems)))
			for i, p := range problems {
				g.Expect(p.Error()).To(ContainSubstring(c.problems[i]))
			}
			for _, port := range served.Ports {
				for _, vip := range port.VIPs {
					if vip.Kind == config.ClusterIP || port.Protocol != config.TCP || c.networks == nil {
						g.Expect(vip.Balancers).To(BeNil(), "%s %s", port.Protocol, vip.Kind)
						continue
					}
					var networks []string
					for _, n := range vip.Balancers.Networks {
						networks = append(networks, n.String())
					}
					g.Expect(networks).To(Equal(c.networks), "%s", vip.Kind)
				}
			}
		})
	}
}

func TestProxyHeaderIsExpectedFromLoadBalancersOnly(t *testing.T) {
	g := NewWithT(t)
	served, _ := Service(annotatedService(map[string]string{AnnotationAcceptProxyProtocol: "10.1.0.0/16"}), nil, config.Node{}, Options{})
	cluster, external := served.Ports[0].VIPs[0], served.Ports[0].VIPs[1]
	balancer := netip.MustParseAddr("10.1.2.3")
	g.Expect(external.Expects(balancer)).To(BeTrue())
	g.Expect(external.Expects(netip.MustParseAddr("10.2.2.3"))).To(BeFalse())
	g.Expect(cluster.Expects(balancer)).To(BeFalse())
	g.Expect(external.Balancers.Allows(balancer)).To(BeTrue(), "in loadBalancerSourceRanges, like all IPv4 addresses")
	g.Expect(external.Balancers.Allows(netip.MustParseAddr("2001:db8::1"))).To(BeFalse(), "not in loadBalancerSourceRanges, although the VIP is IPv4")
}
