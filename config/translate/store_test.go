package translate

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// BenchmarkStoreEndpoint computes a Service with 10,000 endpoints after one of them changes.
func BenchmarkStoreEndpoint(b *testing.B) {
	web := types.NamespacedName{Namespace: "default", Name: "web"}
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"}, Ports: []corev1.ServicePort{{Port: 80}}}}
	var all []*discoveryv1.EndpointSlice
	for i := range 100 {
		slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("web-%d", i), Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: new(int32(8080))}}}
		for n := range 100 {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.1.%d.%d", i, n)}, NodeName: new("node"),
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: fmt.Sprintf("web-%d-%d", i, n)}})
		}
		all = append(all, slice)
	}
	s := NewStore(StoreOptions{Service: func(types.NamespacedName) *corev1.Service { return svc },
		Slices: func(types.NamespacedName) []*discoveryv1.EndpointSlice { return all }})
	for i := range b.N {
		all[50] = all[50].DeepCopy()
		all[50].Endpoints[50].Conditions.Ready = new(i%2 == 1)
		s.Mark(web)
		names := s.Take()
		s.Prepare(names)
		if r := s.Compute(names, true); len(r) != 1 || !r[0].Changed {
			b.Fatal(r)
		}
	}
}

func TestServiceThatChangesBetweenPrepareAndCompute(t *testing.T) {
	g := NewWithT(t)
	web := types.NamespacedName{Namespace: "default", Name: "web"}
	made := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"}, Ports: []corev1.ServicePort{{Port: 80}}}}
	var svc *corev1.Service
	s := NewStore(StoreOptions{Service: func(types.NamespacedName) *corev1.Service { return svc },
		Slices: func(types.NamespacedName) []*discoveryv1.EndpointSlice { return nil }})
	compute := func(prepared, now *corev1.Service) (changed bool) {
		svc = prepared
		names := map[types.NamespacedName]bool{web: true}
		s.Prepare(names)
		svc = now
		r := s.Compute(names, true)
		g.Expect(r).To(HaveLen(1))
		g.Expect(r[0].Service).To(BeIdenticalTo(prepared))
		return r[0].Changed
	}
	g.Expect(compute(nil, made)).To(BeFalse())
	g.Expect(compute(made, nil)).To(BeTrue())
	g.Expect(s.Model(web).Gone()).To(BeFalse())
	g.Expect(s.options.ClusterIPs).To(HaveLen(1))
	g.Expect(compute(nil, made)).To(BeTrue())
	g.Expect(s.Model(web).Gone()).To(BeTrue())
	g.Expect(s.options.ClusterIPs).To(BeEmpty())
}
