package translate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/usherproxy/usher/config"
)

// AnnotationPrefix is the prefix of usher's annotations of a Service.
const AnnotationPrefix = "usher.io/"

// AnnotationClientAddress is the address that the endpoints of a Service see: "auto", the client's if possible, or
// "node".
const AnnotationClientAddress = AnnotationPrefix + "client-address"

// known are the annotations with AnnotationPrefix that have an effect, sorted, and fromAWS those of AWS.
var known, fromAWS = func() (own, aws []string) {
	own = []string{AnnotationClientAddress, AnnotationProxyProtocol, AnnotationAcceptProxyProtocol, AnnotationWeight, AnnotationTopologyKeys}
	aws = []string{annotationAWSDraining, annotationAWSDrainTimeout, AnnotationAWSProxyProtocol, awsProbeProtocol, awsProbePath, awsProbePort, awsTargetType}
	for _, s := range config.Settings {
		own = append(own, AnnotationPrefix+s.Name)
		if s.AWS != "" {
			aws = append(aws, annotationAWS+s.AWS)
		}
	}
	slices.Sort(own)
	return own, aws
}()

// Reads reports whether an annotation of a Service is known or has usher's prefix.
func Reads(annotation string) bool {
	return strings.HasPrefix(annotation, AnnotationPrefix) || slices.Contains(fromAWS, annotation)
}

// unknownAnnotations reports unknown annotations with usher's prefix: most are misspelled.
func unknownAnnotations(svc *corev1.Service, p *problems) {
	for _, name := range slices.Sorted(maps.Keys(svc.Annotations)) {
		if strings.HasPrefix(name, AnnotationPrefix) && !slices.Contains(known, name) {
			p.add(field.NotSupported(field.NewPath("metadata", "annotations"), name, known))
		}
	}
}

// annotated is a value of an annotation.
type annotated struct {
	path *field.Path
	text string
}

func annotation(svc *corev1.Service, name string) (annotated, bool) {
	text, ok := svc.Annotations[name]
	if !ok {
		return annotated{}, false
	}
	return annotated{field.NewPath("metadata", "annotations").Key(name), strings.TrimSpace(text)}, true
}

func (a annotated) wrong(format string, args ...any) *field.Error {
	return field.Invalid(a.path, a.text, fmt.Sprintf(format, args...))
}

// annotatedNodeAddress reports whether the endpoints must see the node's address according to the annotation.
func annotatedNodeAddress(svc *corev1.Service, opts Options, p *problems) bool {
	switch a, ok := annotation(svc, AnnotationClientAddress); {
	case ok && opts.NoClientAddress:
		p.add(field.Forbidden(a.path, "ignored because of --client-address-annotation=false; --client-address applies to all Services"))
	case a.text == "node":
		return true
	case a.text == "auto" && opts.NodeAddress:
		p.add(field.Forbidden(a.path, "ignored because of --client-address=node"))
	case ok && a.text != "auto":
		p.add(field.NotSupported(a.path, a.text, []string{"auto", "node"}))
	}
	return false
}

// The settings that policyOf or servicePorts treats specially.
const (
	annotationProbe          = AnnotationPrefix + "probe"
	annotationDrainTimeout   = AnnotationPrefix + "drain-timeout"
	annotationUDPIdleTimeout = AnnotationPrefix + "udp-idle-timeout"
	annotationAccessLog      = AnnotationPrefix + "access-log"
)

// policyOf returns the policy for svc: the node's, with the values of svc's annotations. valid has usher's own
// annotations among config.Settings that are valid.
func policyOf(svc *corev1.Service, opts Options, p *problems) (policy config.Policy, valid map[string]annotated) {
	policy, valid = opts.Policy, map[string]annotated{}
	for i := range config.Settings {
		s := &config.Settings[i]
		var err error
		a, own := annotation(svc, AnnotationPrefix+s.Name)
		if own {
			err = s.Annotate(&policy, a.text)
		} else if aws, ok := annotation(svc, annotationAWS+s.AWS); ok && s.AWS != "" {
			a, err = aws, s.AnnotateAWS(&policy, aws.text)
		}
		if err != nil {
			p.add(a.wrong("%v; the default is used", err))
		} else if own {
			valid[AnnotationPrefix+s.Name] = a
		}
	}
	if _, own := annotation(svc, annotationDrainTimeout); !own {
		drainAsAWS(svc, &policy, p)
	}
	if _, own := annotation(svc, annotationProbe); !own {
		probeAsAWS(svc, &policy, p)
	}
	if _, own := valid[annotationUDPIdleTimeout]; own {
		policy.UnansweredTimeout = policy.UDPIdleTimeout
	}
	if policy.EndpointLimit == 0 {
		policy.QueueTimeout = 0 // there is no queue
	}
	if opts.NoAccessLog && policy.AccessLog {
		if a, own := valid[annotationAccessLog]; own {
			p.add(a.wrong("no access log on this node; set --access-log"))
		}
		policy.AccessLog = false
	}
	return policy, valid
}
