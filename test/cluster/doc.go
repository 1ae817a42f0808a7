// Package cluster holds the tests of usher against a real API server: the
// program, started with a kubeconfig, on a node of package lab, while the tests
// act as the rest of a cluster would.
//
//	namespace "control"                    the lab of one spec
//	┌───────────────────────┐              outside ───── node ───── pods
//	│ etcd, kube-apiserver, │ 198.51.100.1              usher       servers
//	│ kube-controller-      ├────────────────────────────┘
//	│ manager               │
//	└───────────────────────┘
//
// There is one control plane for the suite; a spec has a network, a namespace
// and an usher of its own. A spec creates Nodes, Services and Pods. Behind a
// Pod's address a server listens, and the Pod's status is what a kubelet would
// report, so that the real EndpointSlice controller writes the slices.
//
//	go test ./...
//
// is all that is needed, as root, with Go and Debian's packages etcd-server,
// iptables and iproute2. The first run builds Kubernetes (package control).
// One of them is a measurement beside kube-proxy, which only `make bench CLUSTER=1` asks
// for.
// The specs say what a proxy for Services must do in a cluster. Where that stands: the
// comments on the fields in k8s.io/api (core/v1, discovery/v1), and Kubernetes' pages
// "Service", "Virtual IPs and Service Proxies" and "EndpointSlices".
package cluster
