package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// demoClusterIP is the demo's Service; no real Service is likely to have it
// where somebody runs a demo.
const demoClusterIP = "10.96.0.10"

// slowAnswer is how long the slow server takes.
const slowAnswer = 400 * time.Millisecond

// startBackends starts the demo's servers on loopback ports.
func startBackends() (*backends, error) {
	b := new(backends)
	err := errors.Join(
		b.serve("web-good", "answers at once", 0),
		b.refuse("web-refuses", "refuses connections"),
		b.serve("web-slow", fmt.Sprintf("answers after %s", slowAnswer), slowAnswer),
	)
	if err != nil {
		b.stop()
		return nil, err
	}
	return b, nil
}

// serve starts an HTTP server that says its name after a while.
func (b *backends) serve(name, does string, after time.Duration) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-time.After(after):
			case <-r.Context().Done():
			}
			fmt.Fprintf(w, "I am %s\n", name)
		}),
	}
	go func() { _ = server.Serve(l) }() // until Close
	b.add(name, does, l.Addr(), func() { server.Close() })
	return nil
}

// refuse takes a port on which connections are refused: that of a connected
// socket, so that nobody else can listen on it meanwhile.
func (b *backends) refuse(name, does string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	holder, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", l.Addr().String())
	if err != nil {
		return err
	}
	b.add(name, does, holder.LocalAddr(), func() { holder.Close() })
	return nil
}

func (b *backends) add(name, does string, addr net.Addr, stop func()) {
	b.list = append(b.list, backend{name: name, does: does, addr: netip.MustParseAddrPort(addr.String())})
	b.close = append(b.close, stop)
}

// writeManifests writes a Service, and an EndpointSlice for each server.
func (b *backends) writeManifests(dir string) error {
	service := corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{
			ClusterIP: demoClusterIP,
			Ports:     []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
	if err := writeYAML(dir, "service.yaml", service); err != nil {
		return err
	}
	for _, e := range b.list {
		name, port, protocol := "http", int32(e.addr.Port()), corev1.ProtocolTCP
		slice := discoveryv1.EndpointSlice{
			TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: e.name,
				Labels: map[string]string{discoveryv1.LabelServiceName: service.Name}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
			Endpoints: []discoveryv1.Endpoint{{
				Addresses: []string{e.addr.Addr().String()},
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: e.name},
			}},
		}
		if err := writeYAML(dir, e.name+".yaml", slice); err != nil {
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
