package kube

import (
	"fmt"
	"io"
	"testing"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BenchmarkCompute computes the model of 10,000 Services with ten endpoints each, as on startup.
func BenchmarkCompute(b *testing.B) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	var services []*corev1.Service
	var slices []*discoveryv1.EndpointSlice
	for i := range 10_000 {
		name := fmt.Sprintf("web-%d", i)
		ip := fmt.Sprintf("10.96.%d.%d", i/250, 1+i%250)
		services = append(services, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: corev1.ServiceSpec{ClusterIP: ip, ClusterIPs: []string{ip}, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}})
		http, port := "http", int32(8080)
		slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &http, Port: &port}}}
		for n := range 10 {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", 100+n, i/250, 1+i%250)}})
		}
		slices = append(slices, slice)
	}
	for b.Loop() {
		b.StopTimer()
		s, err := New(Options{Client: unreachable(), Log: log})
		if err != nil {
			b.Fatal(err)
		}
		for i := range services {
			if err := s.services.GetStore().Add(services[i]); err != nil {
				b.Fatal(err)
			}
			if err := s.slices.GetStore().Add(slices[i]); err != nil {
				b.Fatal(err)
			}
		}
		s.store.MarkAll()
		b.StartTimer()
		if n := len(s.compute(b.Context())); n != len(services) {
			b.Fatal(n)
		}
	}
}
