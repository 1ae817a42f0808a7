// Package kube is the source that watches a Kubernetes API server.
//
// Shared informers keep the Services, the EndpointSlices and the own Node. An
// event marks the Service it concerns dirty; after a short quiet time the dirty
// ones, and only those, are computed anew by package translate and handed on if
// they differ from what was handed on before. So the cost of a change follows
// the change.
//
// Nothing is handed on before the first lists of Services and EndpointSlices are
// complete. When the API server is away, what is known stays as it is, and
// client-go's informers list and watch anew with back-off; [Reach] tells. Where each
// watch is answered with 410 Gone client-go has none: the answers are held back, for
// longer from one to the next.
//
// It is the only package that imports client-go's informers. [Client] sends its requests. It also writes
// Events for those who look at a Service with kubectl.
package kube
