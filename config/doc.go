// Package config is the model of what usher proxies: Services, their ports,
// and for each port where clients connect and which endpoints may answer.
//
// A source (package manifest reads files, package kube watches an API server)
// turns Kubernetes objects into values of this package with the pure functions
// of package translate, and hands them to the proxy. A value is never edited
// after it has been handed over: a change is a new value. So they may be read
// from any goroutine without a lock.
//
// The package knows nothing of sockets, of the kernel or of client-go.
package config
