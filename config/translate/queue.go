package translate

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/usherproxy/usher/config"
)

// Annotations of a Service about clients that wait for an endpoint. They have no effect on UDP.
const (
	// AnnotationEndpointLimit is the maximum number of connections per endpoint, from 1 to config.MaxEndpointLimit; 0
	// means no limit.
	AnnotationEndpointLimit = AnnotationPrefix + "max-connections-per-endpoint"
	// AnnotationQueueTimeout is how long a client waits for an endpoint below the limit: a duration.
	AnnotationQueueTimeout = AnnotationPrefix + "queue-timeout"
)

// annotatedEndpointLimit returns a ServicePort's EndpointLimit.
func annotatedEndpointLimit(svc *corev1.Service, p *problems) int {
	a, ok := annotation(svc, AnnotationEndpointLimit)
	if !ok {
		return 0
	}
	switch n, ok := a.number(0, config.MaxEndpointLimit); {
	case !ok:
		p.add(a.wrong("must be a number of connections from 1 to %d, or 0 for no limit; the default is used", config.MaxEndpointLimit))
		return 0
	case n == 0:
		return config.Unlimited
	default:
		return n
	}
}
