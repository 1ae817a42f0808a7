// Package cluster tests usher against a real API server. The program runs with a
// kubeconfig on a node of package lab, while the tests act as the rest of a
// cluster.
//
//	namespace "control"                    the lab of one spec
//	┌───────────────────────┐              outside ───── node ───── pods
//	│ etcd, kube-apiserver, │ 198.51.100.1              usher       servers
//	│ kube-controller-      ├────────────────────────────┘
//	│ manager               │
//	└───────────────────────┘
//
// The suite has one control plane; each spec has its own network, namespace and usher
// process. A spec creates Nodes, Services and Pods. A server listens at each Pod's
// address. The Pod's status is as a kubelet would report it, so that the real
// EndpointSlice controller writes the slices.
//
//	go test ./...
//
// needs root, Go and Debian's packages etcd-server, iptables and iproute2. The first run
// builds Kubernetes (package control). One spec is a measurement alongside kube-proxy; it
// runs only in `make bench CLUSTER=1`.
// The specs check the requirements for a Service proxy in a cluster. The sources are the
// comments on the fields in k8s.io/api (core/v1, discovery/v1), and Kubernetes' pages
// "Service", "Virtual IPs and Service Proxies" and "EndpointSlices".
package cluster
