package config

import "net/netip"

// Discovery is how clients find a Service by its name: what DNS answers, and what
// the environment of a Pod says. Every Service has it, also one that nobody
// proxies:
//
//	with cluster IPs   ClusterIPs is not empty
//	ExternalName       ExternalName is not empty
//	headless           neither; Endpoints are what its name stands for
type Discovery struct {
	// ClusterIPs are in the order of the Service: the first is the one that
	// the environment tells.
	ClusterIPs []netip.Addr

	// Ports are those of the Service, in its order.
	Ports []DiscoveryPort

	// ExternalName is the name that the Service's stands for, without a dot at
	// its end.
	ExternalName string

	// Endpoints are those of a headless Service that may be found: the ready
	// ones, or all if it publishes those that are not ready. Sorted by address
	// and hostname, each once.
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
	Hostname string // "" if it has none of its own

	// Ports are where it listens, which may be other numbers than the Service's.
	Ports []DiscoveryPort
}
