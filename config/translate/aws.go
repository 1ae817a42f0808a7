package translate

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/usherproxy/usher/config"
)

// AWS's annotations about draining, which are not in config.Settings. usher's own annotations have precedence.
const (
	annotationAWS = "service.beta.kubernetes.io/aws-load-balancer-"

	annotationAWSDraining     = annotationAWS + "connection-draining-enabled" // "true" or "false"
	annotationAWSDrainTimeout = annotationAWS + "connection-draining-timeout" // seconds; needs draining enabled
)

// https://docs.aws.amazon.com/elasticloadbalancing/latest/classic/config-conn-drain.html
const (
	maxAWSDrainTimeout = 3600
	awsDrainTimeout    = 300 * time.Second // AWS's default
)

// drainAsAWS sets the drain timeout of policy if AWS's annotations set one.
func drainAsAWS(svc *corev1.Service, policy *config.Policy, p *problems) {
	switch a, ok := annotation(svc, annotationAWSDraining); {
	case a.text == "true":
		policy.DrainTimeout = awsDrainTimeout
		a, ok = annotation(svc, annotationAWSDrainTimeout)
		if n, err := strconv.Atoi(a.text); err == nil && n >= 1 && n <= maxAWSDrainTimeout {
			policy.DrainTimeout = time.Duration(n) * time.Second
		} else if ok {
			p.add(a.wrong("must be a number of seconds from 1 to %d; AWS's default, 300, is used", maxAWSDrainTimeout))
		}
	case a.text == "false":
		policy.DrainTimeout = 0
	case ok:
		p.add(a.wrong("must be true or false; the default is used"))
	}
}
