// Package config is the model of the proxied objects: Services and their ports, with the VIPs and the endpoints of each
// port.
//
// A source (package manifest reads files, package kube watches an API server) converts Kubernetes objects into values
// of this package with the pure functions of package translate, and passes them to the proxy. A value that was passed
// is never changed: instead, the source passes a new one. So any goroutine can read it without a lock.
//
// The package knows nothing of sockets, of the kernel or of client-go.
package config
