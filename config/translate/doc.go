// Package translate says what Kubernetes objects mean to a service proxy: it
// turns one Service and its EndpointSlices into the model of package config,
// as this node has to serve it.
//
// In goes a Service, all EndpointSlices that may belong to it, and what is
// known of this node. Out comes a [config.Service], and a [Problem] for every
// part of the input that is left out because it cannot be served. The decisions
// are taken in the order of the files:
//
//	proxied.go    which Services are ours at all
//	vips.go       where clients connect, and from where they may
//	endpoints.go  which endpoints the slices hold, each once
//	scheduler.go  how one is chosen among them, and their weights
//	queue.go      how many connections each may have, and how long clients wait
//	policy.go     which of them a new connection may use
//
// Of a Service that nobody proxies too, discovery.go says how it is found by its
// name.
//
// All of that are pure functions: no clock, no kernel, no client-go, no
// state, and the same input in any order gives the same output. A [Store] is what
// remembers: it computes the Services that a source marks, and returns those that
// changed. Both sources use it, so that a manifest means what it would mean in a cluster.
//
// One bad part never takes another with it: an endpoint with a forbidden
// address, or a port with an impossible number, is reported and the rest is
// served. Objects are expected as an API server would return them, defaults
// filled in, but a missing default never matters.
package translate
