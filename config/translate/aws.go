package translate

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/usherproxy/usher/config"
)

// Annotations of a Service for its AWS load balancer, limited to the settings that usher can apply, too. usher's own
// annotations have precedence.
const (
	annotationAWS = "service.beta.kubernetes.io/aws-load-balancer-"

	AnnotationAWSIdleTimeout  = annotationAWS + "connection-idle-timeout"     // seconds
	AnnotationAWSDraining     = annotationAWS + "connection-draining-enabled" // "true" or "false"
	AnnotationAWSDrainTimeout = annotationAWS + "connection-draining-timeout" // seconds; if it is enabled
	AnnotationAWSAccessLog    = annotationAWS + "access-log-enabled"          // "true" or "false"
)

// The limits of the seconds:
// https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_ConnectionSettings.html
// and https://docs.aws.amazon.com/elasticloadbalancing/latest/classic/config-conn-drain.html.
const (
	maxAWSIdleSeconds  = 4000
	maxAWSDrainSeconds = 3600
	awsDrainTimeout    = 300 * time.Second // AWS's default
)

// annotatedSeconds returns the value of an annotation; 0 if it is missing or invalid.
func annotatedSeconds(svc *corev1.Service, name string, most int, p *problems) time.Duration {
	a, ok := annotation(svc, name)
	if !ok {
		return 0
	}
	n, ok := a.number(1, most)
	if !ok {
		p.add(a.wrong("must be a number of seconds from 1 to %d; the default is used", most))
	}
	return time.Duration(n) * time.Second
}

// idleTimeout returns how long connections of svc may be idle; 0 for the default.
func idleTimeout(svc *corev1.Service, p *problems) time.Duration {
	if _, own := annotation(svc, AnnotationIdleTimeout); own {
		return annotatedDuration(svc, AnnotationIdleTimeout, false, p)
	}
	return annotatedSeconds(svc, AnnotationAWSIdleTimeout, maxAWSIdleSeconds, p)
}

// drainTimeout returns how long connections of svc to leaving endpoints stay open; 0 for the default.
func drainTimeout(svc *corev1.Service, p *problems) time.Duration {
	if _, own := annotation(svc, AnnotationDrainTimeout); own {
		return annotatedDuration(svc, AnnotationDrainTimeout, true, p)
	}
	switch annotatedSwitch(svc, AnnotationAWSDraining, p) {
	case config.On:
		if d := annotatedSeconds(svc, AnnotationAWSDrainTimeout, maxAWSDrainSeconds, p); d > 0 {
			return d
		}
		return awsDrainTimeout
	case config.Off:
		return config.Never
	}
	return 0
}

// accessLog returns whether connections of svc are in the access log. If none is set, there is no access log.
func accessLog(svc *corev1.Service, none bool, p *problems) config.Switch {
	a, own := annotation(svc, AnnotationAccessLog)
	if !own {
		return annotatedSwitch(svc, AnnotationAWSAccessLog, p)
	}
	s := annotatedSwitch(svc, AnnotationAccessLog, p)
	if s == config.On && none {
		p.add(a.wrong("no access log on this node; set --access-log"))
	}
	return s
}
