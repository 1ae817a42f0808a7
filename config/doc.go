// Package config is the model of the proxied objects: Services and their ports, with the VIPs and the endpoints of each
// port.
//
// A source converts Kubernetes objects into values of this package, by means of package translate, and passes them to
// the proxy. Package manifest is the source that reads files; package kube is the one that watches an API server. Once
// a value is passed, it never changes: the source passes a new one instead. So any goroutine can read it without a
// lock.
// The package knows nothing of sockets, of the kernel or of client-go.
package config
