package translate

import (
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/usherproxy/usher/config"
)

// Annotations of a Service about the PROXY protocol.
const (
	// AnnotationProxyProtocol is the version in which endpoints receive the client's address: v1 or v2.
	AnnotationProxyProtocol = AnnotationPrefix + "proxy-protocol"
	// AnnotationAcceptProxyProtocol are the networks of the load balancers that send it, separated by commas.
	AnnotationAcceptProxyProtocol = AnnotationPrefix + "accept-proxy-protocol"
	// AnnotationAWSProxyProtocol says that the Service's AWS load balancer sends it. The only valid value is "*".
	AnnotationAWSProxyProtocol = annotationAWS + "proxy-protocol"
)

// version is the request of AnnotationProxyProtocol.
type version struct {
	config.ProxyProtocol
	annotated
}

func proxyProtocol(svc *corev1.Service, p *problems) version {
	a, ok := annotation(svc, AnnotationProxyProtocol)
	if !ok {
		return version{}
	}
	for _, v := range []config.ProxyProtocol{config.ProxyV1, config.ProxyV2} {
		if a.text == v.String() {
			return version{v, a}
		}
	}
	p.add(a.wrong("must be v1 or v2; endpoints get no header"))
	return version{}
}

// over returns the version for the service port at the path port; 0 if its protocol does not support that version.
func (v version) over(protocol config.Protocol, port *field.Path, p *problems) config.ProxyProtocol {
	switch {
	case v.ProxyProtocol == 0 || protocol == config.TCP || protocol == config.UDP && v.ProxyProtocol == config.ProxyV2:
		return v.ProxyProtocol
	case protocol == config.UDP:
		p.add(v.wrong("must be v2 for UDP, which v1 cannot carry; endpoints of %s get no header", port))
	default:
		p.add(v.wrong("supports only TCP and UDP, not %s; endpoints of %s get no PROXY protocol header", protocol, port))
	}
	return 0
}

// balancersOf returns the load balancers of svc that announce their clients' addresses, or nil. aws are the networks of
// AWS's load balancers.
func balancersOf(svc *corev1.Service, aws []netip.Prefix, p *problems) *config.Balancers {
	networks := acceptedFrom(svc, aws, p)
	if len(networks) == 0 {
		return nil
	}
	b := &config.Balancers{Networks: networks}
	if svc.Spec.Type == corev1.ServiceTypeLoadBalancer {
		// A client of one family may connect by the VIP of the other.
		b.Clients = sourceRanges(svc, anyFamily, p)
	}
	return b
}

func acceptedFrom(svc *corev1.Service, aws []netip.Prefix, p *problems) (networks []netip.Prefix) {
	a, ok := annotation(svc, AnnotationAcceptProxyProtocol)
	if !ok {
		return acceptedFromAWS(svc, aws, p)
	}
	for text := range strings.SplitSeq(a.text, ",") {
		text = strings.TrimSpace(text)
		network, ok := parsePrefix(text)
		if addr, alone := ParseAddr(text); alone {
			network, ok = netip.PrefixFrom(addr, addr.BitLen()), true
		}
		if !ok {
			p.add(a.wrong("must be networks of load balancers, separated by commas (e.g. 10.9.8.0/24,2001:db8::/64); %q is not a network and is ignored", text))
			continue
		}
		networks = append(networks, network)
	}
	return networks
}

func acceptedFromAWS(svc *corev1.Service, networks []netip.Prefix, p *problems) []netip.Prefix {
	a, ok := annotation(svc, AnnotationAWSProxyProtocol)
	switch {
	case !ok:
		return nil
	case a.text != "*":
		p.add(a.wrong(`must be "*"; no header is accepted`))
		return nil
	case len(networks) == 0:
		p.add(a.wrong("no header is accepted because the load balancer's networks are unknown; set --load-balancer-cidr for all Services, or the annotation %s for this one", AnnotationAcceptProxyProtocol))
	}
	return networks
}

// behind sets balancers for all VIPs that are reachable from outside.
func behind(vips []config.VIP, balancers *config.Balancers) {
	for i := range vips {
		if vips[i].External() {
			vips[i].Balancers = balancers
		}
	}
}
