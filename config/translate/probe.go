package translate

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/usherproxy/usher/config"
)

// AWS's annotations about probes, without those in config.Settings.
const (
	awsProbe         = annotationAWS + "healthcheck-"
	awsProbeProtocol = awsProbe + "protocol"
	awsProbePath     = awsProbe + "path"
	awsProbePort     = awsProbe + "port"
	awsTargetType    = annotationAWS + "nlb-target-type"
)

// probeOf returns how the endpoints of the service port at path are probed. asked is the
// Service's annotation for probes; zero if it is missing or invalid.
func probeOf(policy *config.Policy, protocol config.Protocol, asked annotated, path *field.Path, p *problems) config.Probe {
	if policy.Probe.Wanted(protocol) {
		return policy.Probe
	}
	if policy.Probe.Check.Kind != config.NoCheck && asked.path != nil {
		p.add(asked.wrong("must name a TCP port to probe, such as tcp:8080, for the %s port at %s; its endpoints are not probed", protocol, path))
	}
	return config.Probe{}
}

// probeAsAWS sets the check of policy from AWS's annotations, if these are valid and about endpoints, not nodes.
func probeAsAWS(svc *corev1.Service, policy *config.Policy, p *problems) {
	protocol, says := annotation(svc, awsProbeProtocol)
	path, hasPath := annotation(svc, awsProbePath)
	var check config.Check
	switch strings.ToLower(protocol.text) {
	case "tcp":
		check.Kind = config.CheckTCP
	case "http":
		check.Kind = config.CheckHTTP
	case "https":
		check.Kind = config.CheckHTTPS
	default:
		if says {
			p.add(field.NotSupported(protocol.path, protocol.text, []string{"HTTP", "HTTPS", "TCP"}))
			return
		} else if !hasPath {
			return
		}
		check.Kind = config.CheckHTTP
	}
	if check.Kind != config.CheckTCP {
		if check.Path = cmp.Or(path.text, "/"); !config.ValidCheckPath(check.Path) {
			p.add(path.wrong("must be a path such as /healthz; the default is used"))
			return
		}
	}
	port, _ := annotation(svc, awsProbePort)
	if port.text == "" && healthCheckNodePort(svc) != 0 && svc.Annotations[awsTargetType] != "ip" {
		return // the load balancer's targets are nodes; it checks their health check node port
	}
	if port.text != "" && port.text != "traffic-port" {
		n, err := strconv.ParseUint(port.text, 10, 16)
		if err != nil || n == 0 {
			p.add(port.wrong("must be traffic-port or a number from 1 to 65535; the default is used"))
			return
		}
		if nodesPort(svc, int32(n)) {
			return
		}
		check.Port = uint16(n)
	}
	policy.Probe.Check = check
}

// kubeProxyHealth is the port of a node on which kube-proxy, and usher, answer health checks.
const kubeProxyHealth = 10256

// nodesPort reports whether port is a port of the nodes, for svc or for all Services, rather than of endpoints.
func nodesPort(svc *corev1.Service, port int32) bool {
	return port == kubeProxyHealth || port == svc.Spec.HealthCheckNodePort ||
		slices.ContainsFunc(svc.Spec.Ports, func(sp corev1.ServicePort) bool { return sp.NodePort == port })
}
