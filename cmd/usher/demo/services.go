package demo

import (
	"fmt"
	"strings"

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
	// clusterIP is an address that is unlikely to belong to a real Service where a
	// user runs a demo.
	clusterIP string
	protocol  corev1.Protocol
	port      int32
	sticky    bool
	// backends are the initial faults of its servers; "" means none. The servers' names are
	// the Service's with a number.
	backends []string
	// requests is the number of requests of 'usher demo --once': enough that each faulty
	// server gets one.
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

// named returns the Service called name, or whose server is called name; both with or
// without namespace.
func named(name string) (s service, server bool, err error) {
	name = strings.TrimPrefix(name, metav1.NamespaceDefault+"/")
	var all []string
	for _, s := range services {
		if s.name == name {
			return s, false, nil
		}
		all = append(all, s.name)
		for i := range s.backends {
			if s.server(i) == name {
				return s, true, nil
			}
		}
	}
	return service{}, false, fmt.Errorf("unknown name %q: must be a Service (%s) or one of their servers, such as %s",
		name, strings.Join(all, ", "), services[0].server(0))
}

// server returns the name of one of its servers.
func (s service) server(i int) string { return fmt.Sprintf("%s-%d", s.name, i+1) }

// portName returns the name of the Service's only port.
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
// into a separate file.
func writeManifests(list backends, write func(file string, text []byte) error) error {
	each := func(name string, object any) error {
		text, err := yaml.Marshal(object)
		if err != nil {
			return err
		}
		return write(name+".yaml", text)
	}
	for _, s := range services {
		if err := each(s.name, s.object()); err != nil {
			return err
		}
	}
	for _, b := range list {
		if err := each(b.name, b.slice()); err != nil {
			return err
		}
	}
	return nil
}
