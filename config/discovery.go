package config

import "net/netip"

// Discovery is how clients find a Service by its name: through DNS and the environment variables of Pods. Services that
// are not proxied have it, too. The fields show the kind of Service:
//
//	with cluster IPs   ClusterIPs is not empty
//	ExternalName       ExternalName is not empty
//	headless           neither; its name resolves to Endpoints
type Discovery struct {
	// ClusterIPs are in the Service's order. A Pod's environment variables contain the first one.
	ClusterIPs []netip.Addr

	// Ports are the Service's ports, in its order.
	Ports []DiscoveryPort

	// ExternalName is the name that the Service's name resolves to, without a trailing dot.
	ExternalName string

	// Endpoints are the published endpoints of a headless Service: the ready ones, or all if it publishes not-ready
	// addresses. Sorted by address and hostname, without duplicates.
	Endpoints []DiscoveryEndpoint
}

// DiscoveryPort is a port of a Service or of an endpoint.
type DiscoveryPort struct {
	Name     string // "" if it has none
	Protocol Protocol
	Number   uint16
}

// DiscoveryEndpoint is an endpoint of a headless Service.
type DiscoveryEndpoint struct {
	Addr     netip.Addr
	Hostname string // "" if it has none

	// Ports are its own ports, whose numbers may differ from the Service's.
	Ports []DiscoveryPort
}
