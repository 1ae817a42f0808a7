package demo

import (
	"net/netip"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/usherproxy/usher/proxy/admin/api"
)

// service is one of the demo's Services.
type service struct {
	name  string
	about string
	// clusterIP is one that no real Service is likely to have where somebody
	// runs a demo.
	clusterIP string
	protocol  corev1.Protocol
	port      int32
	sticky    bool
	// backends are the faults that its servers begin with; "" is none. Their
	// names are the Service's with a number.
	backends []string
	// requests is how many 'usher demo --once' makes: enough that a faulty
	// server's turn comes.
	requests int
}

// services has a Service of each kind.
var services = []service{
	{name: "web", about: "three servers that answer", clusterIP: "10.96.0.10",
		protocol: corev1.ProtocolTCP, port: 80, backends: []string{"", "", ""}, requests: 3},
	{name: "refusing", about: "one of two refuses connections", clusterIP: "10.96.0.11",
		protocol: corev1.ProtocolTCP, port: 80, backends: []string{"", api.DemoRefuse}, requests: 2},
	{name: "blackhole", about: "one of two never answers", clusterIP: "10.96.0.12",
		protocol: corev1.ProtocolTCP, port: 80, backends: []string{"", api.DemoBlackhole}, requests: 2},
	{name: "sticky", about: "each client keeps its server", clusterIP: "10.96.0.13",
		protocol: corev1.ProtocolTCP, port: 80, sticky: true, backends: []string{"", ""}, requests: 2},
	{name: "echo", about: "UDP; one of two refuses", clusterIP: "10.96.0.14",
		protocol: corev1.ProtocolUDP, port: 7, backends: []string{"", api.DemoRefuse}, requests: 2},
	{name: "empty", about: "has no endpoints", clusterIP: "10.96.0.15",
		protocol: corev1.ProtocolTCP, port: 80, requests: 1},
}

// VIP is one of the demo's cluster IPs. A portal is of use only where a route leads
// to it.
var VIP = netip.MustParseAddr(services[0].clusterIP)

// portName is the name of the Service's only port.
func (s service) portName() string {
	if s.protocol == corev1.ProtocolUDP {
		return "echo"
	}
	return "http"
}

// object returns the Service.
func (s service) object() corev1.Service {
	object := corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: s.name},
		Spec: corev1.ServiceSpec{
			ClusterIP: s.clusterIP,
			Ports:     []corev1.ServicePort{{Name: s.portName(), Protocol: s.protocol, Port: s.port}},
		},
	}
	if s.sticky {
		object.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	}
	return object
}

// slice returns the EndpointSlice with one of the Service's servers.
func (b *backend) slice() discoveryv1.EndpointSlice {
	name, port := b.service.portName(), int32(b.addr.Port())
	return discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: b.name,
			Labels: map[string]string{discoveryv1.LabelServiceName: b.service.name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &b.service.protocol}},
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{b.addr.Addr().String()},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: metav1.NamespaceDefault, Name: b.name},
		}},
	}
}

// writeManifests writes the Services, and an EndpointSlice for each server, each
// into a file of its own.
func writeManifests(dir string, list backends) error {
	for _, s := range services {
		if err := writeYAML(dir, s.name+".yaml", s.object()); err != nil {
			return err
		}
	}
	for _, b := range list {
		if err := writeYAML(dir, b.name+".yaml", b.slice()); err != nil {
			return err
		}
	}
	return nil
}

func writeYAML(dir, file string, object any) error {
	text, err := yaml.Marshal(object)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, file), text, 0o644)
}
