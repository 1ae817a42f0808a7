// Package control starts a real control plane for tests: etcd, kube-apiserver
// and kube-controller-manager, as processes in a network namespace.
//
//	the namespace                             elsewhere
//	┌──────────────────────────────────┐
//	│ etcd ◀── kube-apiserver ◀────────┼──── the test (Plane.Config)
//	│                ▲      ▲          │
//	│  kube-controller-     │          │
//	│  manager             Wire ◀──────┼──── what is tested, where the way to the
//	└──────────────────────────────────┘     API server is to be cut
//
// There is no kubelet, no scheduler and no node: a test writes what they would
// write. There is the EndpointSlice controller, so that a Pod whose status says
// Ready becomes an endpoint as it does in a cluster.
//
// Kubernetes' programs are built from the module that go.mod names, once, into
// .cache at the top of the repository. etcd is Debian's (etcd-server).
//
// Like package lab, functions here fail the test when something goes wrong, and
// what they start ends with the test. A process is ended by its id, and dies
// with the test's process even if that is killed.
package control
