// Package otel tests what usher tells OpenTelemetry, with the receiver of that project's
// own Collector.
//
// It is a module of its own, so that usher's does not get the Collector. Nothing here
// needs root or reaches beyond loopback: usher runs with --portal=none.
package otel
