package kube

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/cache"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/manifest"
	"github.com/usherproxy/usher/config/translate"
)

// choices derives choices from bytes. After the last byte, each choice is 0.
type choices struct{ bytes []byte }

func (c *choices) of(n int) int {
	if len(c.bytes) == 0 {
		return 0
	}
	b := c.bytes[0]
	c.bytes = c.bytes[1:]
	return int(b) % n
}

func (c *choices) yes() bool { return c.of(2) == 1 }

func oneOf[T any](c *choices, of ...T) T { return of[c.of(len(of))] }

func (c *choices) protocol() corev1.Protocol {
	return oneOf(c, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
}

// service returns the Service number i, valid and as an API server stores it.
func (c *choices) service(i int) *corev1.Service {
	v4, v6 := fmt.Sprintf("10.96.0.%d", 1+i), fmt.Sprintf("fd00:96::%x", 1+i)
	s := &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("s%d", i)}}
	s.Spec = corev1.ServiceSpec{
		Type: oneOf(c, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer), SessionAffinity: corev1.ServiceAffinityNone,
		InternalTrafficPolicy: new(oneOf(c, corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal)),
		ClusterIPs:            oneOf(c, []string{v4}, []string{v6}, []string{v4, v6}, []string{corev1.ClusterIPNone}),
	}
	spec := &s.Spec
	if spec.ClusterIPs[0] == corev1.ClusterIPNone {
		spec.Type = corev1.ServiceTypeClusterIP
	}
	spec.ClusterIP, spec.IPFamilyPolicy = spec.ClusterIPs[0], new(corev1.IPFamilyPolicySingleStack)
	for _, ip := range spec.ClusterIPs {
		spec.IPFamilies = append(spec.IPFamilies, map[string]corev1.IPFamily{v4: corev1.IPv4Protocol, v6: corev1.IPv6Protocol, corev1.ClusterIPNone: corev1.IPv4Protocol}[ip])
	}
	if len(spec.IPFamilies) == 2 {
		spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
	}
	for p := range 1 + c.of(3) {
		port := corev1.ServicePort{Name: fmt.Sprintf("p%d", p), Port: int32(80 + p), TargetPort: intstr.FromInt32(8080), Protocol: c.protocol()}
		if spec.Type != corev1.ServiceTypeClusterIP {
			port.NodePort = int32(30000 + 10*i + p)
		}
		spec.Ports = append(spec.Ports, port)
	}
	if c.yes() {
		spec.SessionAffinity = corev1.ServiceAffinityClientIP
		spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(1 + c.of(100)))}}
	}
	if c.yes() && spec.ClusterIP != corev1.ClusterIPNone {
		spec.ExternalIPs = []string{fmt.Sprintf("192.0.2.%d", 1+c.of(3))}
	}
	if spec.Type != corev1.ServiceTypeClusterIP || len(spec.ExternalIPs) > 0 {
		spec.ExternalTrafficPolicy = oneOf(c, corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer {
		spec.AllocateLoadBalancerNodePorts = new(true)
		if spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
			spec.HealthCheckNodePort = int32(31000 + i)
		}
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: fmt.Sprintf("198.51.100.%d", 1+i), IPMode: new(corev1.LoadBalancerIPModeVIP)}}
		if c.yes() {
			spec.LoadBalancerSourceRanges = []string{"203.0.113.0/24"}
		}
	}
	for _, a := range [][2]string{{"usher.io/scheduler", "maglev"}, {"usher.io/slow-start", "10s"}, {"usher.io/max-connection-age", "1h"}, {translate.AnnotationTopologyKeys, "kubernetes.io/hostname,*"}} {
		if c.of(4) == 1 && !(a[0] == translate.AnnotationTopologyKeys && spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal) {
			metav1.SetMetaDataAnnotation(&s.ObjectMeta, a[0], a[1])
		}
	}
	if c.of(8) == 1 {
		metav1.SetMetaDataLabel(&s.ObjectMeta, translate.LabelServiceProxyName, "other")
	}
	return s
}

// slice returns the EndpointSlice number i, which may belong to any Service.
func (c *choices) slice(i int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("e%d", i), Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprintf("s%d", c.of(5))}},
		AddressType: oneOf(c, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6)}
	for p := range c.of(4) {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new(fmt.Sprintf("p%d", p)), Port: new(int32(8080 + p)), Protocol: new(c.protocol())})
	}
	for range c.of(5) {
		e := discoveryv1.Endpoint{Conditions: discoveryv1.EndpointConditions{Ready: oneOf(c, nil, new(true), new(false)), Serving: oneOf(c, nil, new(true), new(false)), Terminating: oneOf(c, nil, new(true), new(false))}}
		network := oneOf(c, "10.1.0.%d", "10.96.0.%d") // may be a cluster IP
		if s.AddressType == discoveryv1.AddressTypeIPv6 {
			network = oneOf(c, "fd00:1::%x", "fd00:96::%x")
		}
		address := fmt.Sprintf(network, 1+c.of(8))
		e.Addresses = []string{address}
		e.NodeName, e.Zone = oneOf(c, nil, new("here"), new("there")), oneOf(c, nil, new("east"), new("west"))
		if c.yes() {
			e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: fmt.Sprintf("pod-%d", c.of(4))}
		}
		if c.yes() {
			e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: oneOf(c, "east", "west")}}}
		}
		if !slices.ContainsFunc(s.Endpoints, func(other discoveryv1.Endpoint) bool { return other.Addresses[0] == address }) {
			s.Endpoints = append(s.Endpoints, e)
		}
	}
	return s
}

// FuzzSources passes a changing set of objects to both sources: as files, and as an API server sends them. Both must
// compute the same model, one from the changes, the other from scratch.
func FuzzSources(f *testing.F) {
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 200 {
		seed := make([]byte, 1500)
		for k := range seed {
			seed[k] = byte(random.Uint32())
		}
		f.Add(seed, i%2 == 1)
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	node := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "here", Labels: map[string]string{corev1.LabelTopologyZone: "east"}}}
	f.Fuzz(func(t *testing.T, data []byte, discovery bool) {
		c := &choices{data}
		s, err := New(Options{Client: unreachable(), Log: log, NodeName: "here", Discovery: discovery})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.nodes.GetStore().Add(node); err != nil {
			t.Fatal(err)
		}
		objects, applied := map[string]runtime.Object{"node": node}, map[types.NamespacedName]config.Service{}
		for round := range 4 {
			for i := range 11 {
				if round > 0 && c.of(3) > 0 {
					continue
				}
				gone := c.of(4) == 1
				if i < 5 {
					replace(t, s.services.GetStore(), objects, c.service(i), gone, s.watchService)
				} else {
					replace(t, s.slices.GetStore(), objects, c.slice(i), gone, s.watchSlice)
				}
			}
			for _, svc := range s.compute(t.Context()) {
				if applied[svc.Name] = svc; svc.Gone() {
					delete(applied, svc.Name)
				}
			}
			fromFiles := map[types.NamespacedName]config.Service{}
			for _, svc := range fromFile(t, objects, discovery) {
				fromFiles[svc.Name] = svc
			}
			if !reflect.DeepEqual(applied, fromFiles) {
				t.Fatalf("round %d:\nfrom an API server %+v\nfrom a file        %+v", round, applied, fromFiles)
			}
		}
	})
}

// replace adds, replaces or deletes an object, as an informer does.
func replace(t *testing.T, store cache.Store, objects map[string]runtime.Object, now metav1.Object, gone bool, mark func(any)) {
	before, known := objects[now.GetName()]
	if known {
		mark(before)
	}
	object := now.(runtime.Object)
	if gone {
		delete(objects, now.GetName())
		if err := store.Delete(object); err != nil {
			t.Fatal(err)
		}
		return
	}
	objects[now.GetName()] = object
	kept, err := trim(object.DeepCopyObject())
	if err == nil {
		err = store.Add(kept)
	}
	if err != nil {
		t.Fatal(err)
	}
	mark(object)
}

// fromFile returns the model of a file with these objects.
func fromFile(t *testing.T, objects map[string]runtime.Object, discovery bool) []config.Service {
	var text []byte
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		document, err := json.Marshal(objects[name])
		if err != nil {
			t.Fatal(err)
		}
		text = append(append(text, document...), "\n---\n"...)
	}
	r, err := manifest.Check(manifest.Options{Paths: []string{manifest.Stdin}, Input: bytes.NewReader(text), Node: config.Node{Name: "here"}, Discovery: discovery})
	if err != nil {
		t.Fatal(err)
	}
	if r.Unreadable || len(r.Spoiled) > 0 { // valid objects that are not served do not matter
		t.Fatalf("no valid objects: %v", r.Errors[:min(len(r.Errors), 3)])
	}
	return r.Services
}
