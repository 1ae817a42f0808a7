// Package kube is the source that watches a Kubernetes API server.
//
// Shared informers store the Services, the EndpointSlices and this node's Node. An event marks its Service dirty. After
// a short quiet time package translate recomputes only the dirty Services, and the source passes on those that changed.
// So the cost of a change is proportional to the change.
//
// Nothing is passed on before the first lists of Services and EndpointSlices, and that of this node's Node, are
// complete. While the API server is unreachable, the known state stays, and client-go's informers list and watch again
// with back-off; [Reach] reports this. client-go does not back off if the API server answers each watch with 410 Gone.
// In this case Reach delays the answers, increasingly.
//
// It is the only package of usher that imports client-go's informers. [Client] sends its requests. The package also
// writes Events for users that inspect a Service with kubectl.
package kube
