// Package translate converts a Service and its EndpointSlices into the model of package config, as this node has to
// serve it.
//
// The input is a Service, all EndpointSlices that may belong to it, and the state of this node. The output is a
// [config.Service], and a [Problem] for every part of the input that is omitted because it cannot be served. The
// decisions are made in the order of the files:
//
//	proxied.go    which Services usher serves
//	vips.go       the VIPs, and which clients may use them
//	endpoints.go  the endpoints in the slices, without duplicates
//	scheduler.go  how one of them is selected, and their weights
//	queue.go      how many connections each may have, and how long clients wait
//	policy.go     which of them a new connection may use
//
// discovery.go determines how a Service is found by its name, even if usher does not proxy it.
//
// All of these are pure functions: no clock, no kernel, no client-go, no state, and the same input in any order gives
// the same output. A [Store] keeps the state: it computes the Services that a source marks, and returns those that
// changed. Both sources use it, so that a manifest means the same as in a cluster.
//
// One invalid part never affects another. For example, an endpoint with a forbidden address, or a port with an invalid
// number, is reported, and the rest is served. Objects have the form in which an API server returns them, but
// need not have defaults.
package translate
