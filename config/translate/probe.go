package translate

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/usherproxy/usher/config"
)

// Annotations of a Service about the probes of its endpoints: see config.Probe.
const (
	AnnotationProbe         = AnnotationPrefix + "probe" // in the syntax of config.Check
	AnnotationProbeInterval = AnnotationPrefix + "probe-interval"
	AnnotationProbeTimeout  = AnnotationPrefix + "probe-timeout"
	AnnotationProbeRise     = AnnotationPrefix + "probe-rise"
	AnnotationProbeFall     = AnnotationPrefix + "probe-fall"
)

// The AWS equivalents, times in seconds. usher's own annotations have precedence.
const (
	awsProbe         = annotationAWS + "healthcheck-"
	awsProbeProtocol = awsProbe + "protocol"
	awsProbePath     = awsProbe + "path"
	awsProbePort     = awsProbe + "port"
	awsProbeInterval = awsProbe + "interval"
	awsProbeTimeout  = awsProbe + "timeout"
	awsProbeRise     = awsProbe + "healthy-threshold"
	awsProbeFall     = awsProbe + "unhealthy-threshold"
	awsTargetType    = annotationAWS + "nlb-target-type"
)

const (
	MinProbeInterval = time.Second
	MinProbeTimeout  = 100 * time.Millisecond
	MaxProbeInterval = time.Hour
	MaxProbeTimeout  = 2 * time.Minute // as with AWS
	MaxProbeCount    = 100             // to rise or fall
)

// probe is the Service's request for probes.
type probe struct {
	config.Probe
	annotated      // the annotation with the check
	aws       bool // from AWS's annotations
}

func annotatedProbe(svc *corev1.Service, p *problems) (asked probe) {
	if a, ok := annotation(svc, AnnotationProbe); !ok {
		asked = awsCheck(svc, p)
	} else if asked.annotated = a; asked.Check.UnmarshalText([]byte(a.text)) != nil {
		p.add(a.wrong("must be %s; the default is used", config.CheckForms))
	}
	asked.Interval = probeTime(svc, AnnotationProbeInterval, awsProbeInterval, MinProbeInterval, MaxProbeInterval, p)
	asked.Timeout = probeTime(svc, AnnotationProbeTimeout, awsProbeTimeout, MinProbeTimeout, MaxProbeTimeout, p)
	asked.Rise = probeCount(svc, AnnotationProbeRise, awsProbeRise, p)
	asked.Fall = probeCount(svc, AnnotationProbeFall, awsProbeFall, p)
	return asked
}

// of returns the probes of the service port at path.
func (a probe) of(protocol config.Protocol, path *field.Path, p *problems) config.Probe {
	if a.Check.Kind > config.NoCheck && !a.Wanted(protocol) {
		if a.aws { // AWS load balancers probe the node, or another port of the target
			return config.Probe{Check: config.Check{Kind: config.NoCheck}}
		}
		p.add(a.wrong("must name a TCP port to probe, such as tcp:8080, for the %s port at %s; its endpoints are not probed", protocol, path))
		a.Check = config.Check{Kind: config.NoCheck}
	}
	return a.Probe
}

// awsCheck returns the check that AWS's annotations request; none if they are invalid, or are about nodes, not
// endpoints.
func awsCheck(svc *corev1.Service, p *problems) (asked probe) {
	protocol, says := annotation(svc, awsProbeProtocol)
	path, hasPath := annotation(svc, awsProbePath)
	asked.annotated, asked.aws = protocol, true
	switch strings.ToLower(protocol.text) {
	case "tcp":
		asked.Check.Kind = config.CheckTCP
	case "http":
		asked.Check.Kind = config.CheckHTTP
	case "https":
		asked.Check.Kind = config.CheckHTTPS
	default:
		if says {
			p.add(field.NotSupported(protocol.path, protocol.text, []string{"HTTP", "HTTPS", "TCP"}))
			return probe{}
		} else if !hasPath {
			return probe{}
		}
		asked.annotated, asked.Check.Kind = path, config.CheckHTTP
	}
	if asked.Check.Kind != config.CheckTCP {
		if asked.Check.Path = cmp.Or(path.text, "/"); !config.ValidCheckPath(asked.Check.Path) {
			p.add(path.wrong("must be a path such as /healthz; the default is used"))
			return probe{}
		}
	}
	port, _ := annotation(svc, awsProbePort)
	if port.text == "" && healthCheckNodePort(svc) != 0 && svc.Annotations[awsTargetType] != "ip" {
		return probe{} // the load balancer's targets are nodes; it checks their health check node port
	}
	if port.text == "" || port.text == "traffic-port" {
		return asked
	}
	n, err := strconv.ParseUint(port.text, 10, 16)
	if err != nil || n == 0 {
		p.add(port.wrong("must be traffic-port or a number from 1 to 65535; the default is used"))
		return probe{}
	}
	if nodesPort(svc, int32(n)) {
		return probe{}
	}
	asked.Check.Port = uint16(n)
	return asked
}

// kubeProxyHealth is the port of a node on which kube-proxy, and usher, answer health checks.
const kubeProxyHealth = 10256

// nodesPort reports whether port is a port of the nodes, for svc or for all Services, rather than of endpoints.
func nodesPort(svc *corev1.Service, port int32) bool {
	return port == kubeProxyHealth || port == svc.Spec.HealthCheckNodePort ||
		slices.ContainsFunc(svc.Spec.Ports, func(sp corev1.ServicePort) bool { return sp.NodePort == port })
}

// probeTime returns a time from one of two annotations of svc; 0, for the default, if it has neither.
func probeTime(svc *corev1.Service, own, aws string, least, most time.Duration, p *problems) time.Duration {
	a, ok := annotation(svc, own)
	if !ok {
		return annotatedSeconds(svc, aws, int(most/time.Second), p)
	}
	d, ok := a.duration(least, most)
	if !ok {
		p.add(a.wrong("must be a duration from %s to %s, such as 10s; the default is used", least, most))
	}
	return d
}

// probeCount is like probeTime, for a number of probes.
func probeCount(svc *corev1.Service, own, aws string, p *problems) int {
	a, ok := annotation(svc, own)
	if !ok {
		if a, ok = annotation(svc, aws); !ok {
			return 0
		}
	}
	n, ok := a.number(1, MaxProbeCount)
	if !ok {
		p.add(a.wrong("must be a number from 1 to %d; the default is used", MaxProbeCount))
	}
	return n
}
