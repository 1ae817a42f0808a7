package translate_test

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/translate"
)

// keyed sets the topology keys of a Service.
func keyed(keys string) func(*corev1.Service) {
	return func(svc *corev1.Service) {
		svc.Annotations = map[string]string{translate.AnnotationTopologyKeys: keys}
	}
}

func inZone(name string) func(*discoveryv1.Endpoint) {
	return func(e *discoveryv1.Endpoint) { e.Zone = &name }
}

func labelled(key, value string) func(*discoveryv1.Endpoint) {
	return func(e *discoveryv1.Endpoint) { e.DeprecatedTopology = map[string]string{key: value} }
}

var _ = Describe("a Service with topology keys", func() {
	const zone, region, host, rack = corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelHostname, "example.com/rack"
	known := map[string]map[string]string{
		"here":   {region: "r1", rack: "7"},
		"near":   {region: "r1", rack: "7"},
		"far":    {region: "r1", rack: "8", zone: "west"},
		"abroad": {region: "r2", rack: "7"},
	}
	nodes := func(name string) map[string]string { return known[name] }
	served := func(svc *corev1.Service, endpoints ...discoveryv1.Endpoint) config.ServicePort {
		GinkgoHelper()
		out, problems := translate.Service(svc, []*discoveryv1.EndpointSlice{slice("web-1", endpoints...)}, here, translate.Options{Nodes: nodes})
		Expect(problems).To(BeEmpty())
		return out.Ports[0]
	}
	all := []discoveryv1.Endpoint{
		endpoint("10.0.0.1", onNode("here"), inZone("east")),
		endpoint("10.0.0.2", onNode("near"), inZone("east")),
		endpoint("10.0.0.3", onNode("far")),
		endpoint("10.0.0.4", onNode("abroad"), inZone("north")),
	}
	DescribeTable("uses the endpoints that match this node in the first key with any match",
		func(keys string, first int, decided string, want ...string) {
			port := served(service(keyed(keys)), all[first:]...)
			var got []string
			for _, e := range port.Cluster {
				got = append(got, e.Addr.Addr().String())
			}
			Expect(got).To(HaveExactElements(want))
			Expect(port.Internal).To(Equal(port.Cluster))
			Expect(port.External).To(Equal(port.Cluster))
			Expect(port.Topology.Key).To(Equal(decided))
			Expect(strings.Join(port.Topology.Keys, ", ")).To(Equal(keys))
			Expect(port.Endpoints).To(HaveLen(len(all) - first))
		},
		Entry("hostname: the endpoint on the node", host, 0, host, "10.0.0.1"),
		Entry("hostname, without an endpoint on the node: none", host, 1, ""),
		Entry("hostname, then zone: no endpoint on the node, one in its zone", host+", "+zone, 1, zone, "10.0.0.2"),
		Entry("zone, from the EndpointSlice", zone, 0, zone, "10.0.0.1", "10.0.0.2"),
		Entry("zone, then region from Node labels: none in the zone, one in the region", zone+", "+region, 2, region, "10.0.0.3"),
		Entry("any other Node label", rack, 0, rack, "10.0.0.1", "10.0.0.2", "10.0.0.4"),
		Entry("a label that no node has", "example.com/none", 0, ""),
		Entry("*: all endpoints", "*", 0, "*", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"),
		Entry("hostname, then *: none on the node, so all", host+", *", 3, "*", "10.0.0.4"),
	)
	It("prefers a ready endpoint farther away to a terminating one nearby", func() {
		port := served(service(keyed(host+",*")), endpoint("10.0.0.1", onNode("here"), draining), all[3])
		Expect(addrs(port.Cluster)).To(Equal([]string{"10.0.0.4:8080"}))
		port = served(service(keyed(host+",*")), endpoint("10.0.0.1", onNode("here"), draining), endpoint("10.0.0.4", onNode("abroad"), draining))
		Expect(addrs(port.Cluster)).To(Equal([]string{"10.0.0.1:8080"}), "terminating endpoints are used if no other is ready")
	})
	It("also uses the labels in a slice's deprecatedTopology", func() {
		port := served(service(keyed(rack)), endpoint("10.0.0.1", labelled(rack, "7")), endpoint("10.0.0.2", labelled(rack, "9")))
		Expect(addrs(port.Cluster)).To(Equal([]string{"10.0.0.1:8080"}))
	})
	It("prefers configured labels of this node to those of its Node object", func() {
		at := here
		at.Labels = map[string]string{rack: "8", zone: "west"}
		out, _ := translate.Service(service(keyed(zone+","+rack)), []*discoveryv1.EndpointSlice{slice("web-1", all...)}, at, translate.Options{Nodes: nodes})
		Expect(addrs(out.Ports[0].Cluster)).To(Equal([]string{"10.0.0.3:8080"}))
		Expect(out.Ports[0].Topology.Value).To(Equal("west"))
	})
	It("ignores the hints in EndpointSlices", func() {
		port := served(service(keyed(host)), endpoint("10.0.0.1", onNode("here"), forZones("west")), endpoint("10.0.0.2", onNode("near"), forZones("east")))
		Expect(addrs(port.Cluster)).To(Equal([]string{"10.0.0.1:8080"}))
	})
	It("uses only endpoints of this node with internalTrafficPolicy Local", func() {
		port := served(service(keyed("*"), func(svc *corev1.Service) {
			svc.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
		}), all...)
		Expect(addrs(port.Internal)).To(Equal([]string{"10.0.0.1:8080"}))
		Expect(port.Cluster).To(HaveLen(4))
	})
	DescribeTable("needs Node labels only for keys that EndpointSlices do not provide",
		func(keys string, want ...string) {
			Expect(translate.NodeKeys(service(keyed(keys)), []*discoveryv1.EndpointSlice{slice("web-1", all[:2]...)})).To(HaveExactElements(want))
		},
		Entry("hostname", host+",*"), Entry("zone", zone), Entry("region", host+","+region, region), Entry("invalid keys", "*,"+region),
	)
	It("needs the zones of Nodes if a slice lacks the zone of an endpoint", func() {
		Expect(translate.NodeKeys(service(keyed(zone)), []*discoveryv1.EndpointSlice{slice("web-1", all...)})).To(Equal([]string{zone}))
		Expect(translate.NodeKeys(service(), []*discoveryv1.EndpointSlice{slice("web-1", all...)})).To(BeEmpty())
	})
	DescribeTable("that are invalid uses all endpoints, and reports a problem",
		func(keys, problem string, more ...func(*corev1.Service)) {
			svc := service(append(more, keyed(keys))...)
			out, problems := translate.Service(svc, []*discoveryv1.EndpointSlice{slice("web-1", all...)}, here, translate.Options{Nodes: nodes})
			Expect(out.Ports[0].Cluster).To(HaveLen(4))
			Expect(out.Ports[0].Topology).To(BeNil())
			Expect(problems).To(ConsistOf(MatchError("Service default/web: metadata.annotations[usher.io/topology-keys]" + problem + " the topology keys are ignored")))
		},
		Entry("* not last", "*,"+zone, `[0]: Invalid value: "*": "*" must be the last value specified;`),
		Entry("a duplicate key", zone+","+zone, `[1]: Duplicate value: "topology.kubernetes.io/zone":`),
		Entry("an invalid label key", "zone!", `[0]: Invalid value: "zone!": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]');`),
		Entry("more than 16 keys", func() string {
			var keys []string
			for i := range 17 {
				keys = append(keys, fmt.Sprint("k", i))
			}
			return strings.Join(keys, ",")
		}(), ": Too many: 17: must have at most 16 items;"),
		Entry("with externalTrafficPolicy Local", zone, ": Forbidden: may not be specified when `externalTrafficPolicy=Local`;", func(svc *corev1.Service) {
			svc.Spec.Type, svc.Spec.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, corev1.ServiceExternalTrafficPolicyLocal
		}),
	)
})
