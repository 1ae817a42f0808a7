package translate

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/usherproxy/usher/config"
)

// Annotations of a Service about clients that wait for an endpoint. For UDP they mean nothing.
const (
	// AnnotationEndpointLimit is how many connections each endpoint may have at a time, from 1 to
	// config.MaxEndpointLimit; 0 is any number.
	AnnotationEndpointLimit = AnnotationPrefix + "max-connections-per-endpoint"
	// AnnotationQueueTimeout is how long a client waits until one has room: a duration.
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
