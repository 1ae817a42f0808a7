// Package control starts a real control plane for tests: etcd, kube-apiserver
// and kube-controller-manager, as processes in a network namespace.
//
//	the namespace                             elsewhere
//	┌──────────────────────────────────┐
//	│ etcd ◀── kube-apiserver ◀────────┼──── the test (Plane.Config)
//	│                ▲      ▲          │
//	│  kube-controller-     │          │
//	│  manager             Wire ◀──────┼──── the program under test, if the test
//	└──────────────────────────────────┘     cuts its route to the API server
//
// There is no kubelet, scheduler or node: a test writes their objects. The
// EndpointSlice controller runs, so that a Pod whose status says Ready becomes an
// endpoint as in a cluster.
//
// Kubernetes' programs are built once from the module in go.mod, into .cache at
// the top of the repository. etcd is Debian's (etcd-server).
//
// Like package lab, functions here fail the test on errors, and the processes that
// they start end with the test. Processes are ended by their PID, and die with the
// test's process even if that is killed.
package control
