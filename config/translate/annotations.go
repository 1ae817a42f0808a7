package translate

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/usherproxy/usher/config"
)

// AnnotationPrefix is the prefix of usher's annotations of a Service.
const AnnotationPrefix = "usher.io/"

// Annotations of a Service, each a duration such as "30s" or "5m".
const (
	// AnnotationUDPIdleTimeout is how long the Service's UDP sessions stay open without a datagram.
	AnnotationUDPIdleTimeout = AnnotationPrefix + "udp-idle-timeout"
	// AnnotationIdleTimeout is how long the Service's connections stay open without data.
	AnnotationIdleTimeout = AnnotationPrefix + "connection-idle-timeout"
	// AnnotationMaxAge is the maximum duration of the Service's connections.
	AnnotationMaxAge = AnnotationPrefix + "max-connection-age"
	// AnnotationDrainTimeout is how long the Service's connections stay open after their endpoint left or began to
	// terminate; "0" means without limit.
	AnnotationDrainTimeout = AnnotationPrefix + "drain-timeout"
	// AnnotationSlowStart is the time until a new endpoint gets its full share of new connections; "0" means no time.
	AnnotationSlowStart = AnnotationPrefix + "slow-start"
)

// AnnotationAccessLog determines whether the connections of a Service are in the access log: "true" or "false".
const AnnotationAccessLog = AnnotationPrefix + "access-log"

// AnnotationClientAddress is the address that the endpoints of a Service see: "auto", the client's if possible, or
// "node".
const AnnotationClientAddress = AnnotationPrefix + "client-address"

// known are the annotations that have an effect: usher's own, and some of AWS's.
var known = []string{
	AnnotationUDPIdleTimeout, AnnotationIdleTimeout, AnnotationMaxAge, AnnotationDrainTimeout, AnnotationSlowStart,
	AnnotationAccessLog, AnnotationClientAddress, AnnotationProxyProtocol, AnnotationAcceptProxyProtocol,
	AnnotationScheduler, AnnotationWeight, AnnotationTopologyKeys, AnnotationEndpointLimit, AnnotationQueueTimeout,
	AnnotationProbe, AnnotationProbeInterval, AnnotationProbeTimeout, AnnotationProbeRise, AnnotationProbeFall,
	AnnotationAWSIdleTimeout, AnnotationAWSDraining, AnnotationAWSDrainTimeout, AnnotationAWSAccessLog, AnnotationAWSProxyProtocol,
	awsProbeProtocol, awsProbePath, awsProbePort, awsProbeInterval, awsProbeTimeout, awsProbeRise, awsProbeFall, awsTargetType,
}

// Reads reports whether an annotation of a Service is known or has usher's prefix.
func Reads(annotation string) bool {
	return strings.HasPrefix(annotation, AnnotationPrefix) || slices.Contains(known, annotation)
}

// unknownAnnotations reports unknown annotations with usher's prefix: most are misspelled.
func unknownAnnotations(svc *corev1.Service, p *problems) {
	var own []string
	for _, name := range slices.Sorted(maps.Keys(svc.Annotations)) {
		if !strings.HasPrefix(name, AnnotationPrefix) || slices.Contains(known, name) {
			continue
		}
		if own == nil {
			own = slices.DeleteFunc(slices.Sorted(slices.Values(known)), func(k string) bool { return !strings.HasPrefix(k, AnnotationPrefix) })
		}
		p.add(field.NotSupported(field.NewPath("metadata", "annotations"), name, own))
	}
}

// annotated is a value of an annotation.
type annotated struct {
	path *field.Path
	text string
}

func annotation(svc *corev1.Service, name string) (annotated, bool) {
	text, ok := svc.Annotations[name]
	return annotated{field.NewPath("metadata", "annotations").Key(name), strings.TrimSpace(text)}, ok
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

// The limits of annotations of durations. Below 1 s, a UDP session could end before its answer; above a day, it
// would outlive most clients.
const (
	minAnnotatedDuration = time.Second
	maxAnnotatedDuration = 24 * time.Hour
)

// annotatedDuration returns the value of an annotation; 0, for the default, if it is missing or invalid. If never is
// set, 0 is valid, and means config.Never.
func annotatedDuration(svc *corev1.Service, name string, never bool, p *problems) time.Duration {
	a, ok := annotation(svc, name)
	if !ok {
		return 0
	}
	zero := ""
	if never {
		if d, err := time.ParseDuration(a.text); err == nil && d == 0 {
			return config.Never
		}
		zero = "0 or "
	}
	d, ok := a.duration(minAnnotatedDuration, maxAnnotatedDuration)
	if !ok {
		p.add(a.wrong("must be %sa duration from 1s to 24h, such as 30s; the default is used", zero))
	}
	return d
}

// duration returns the value of a; false, and 0, if it is not within the limits.
func (a annotated) duration(least, most time.Duration) (time.Duration, bool) {
	d, err := time.ParseDuration(a.text)
	if err != nil || d < least || d > most {
		return 0, false
	}
	return d, true
}

// number is like duration, but for an integer.
func (a annotated) number(least, most int) (int, bool) {
	n, err := strconv.Atoi(a.text)
	if err != nil || n < least || n > most {
		return 0, false
	}
	return n, true
}

// annotatedSwitch returns the value of an annotation that is "true" or "false"; 0, for the default, if it is missing or
// neither.
func annotatedSwitch(svc *corev1.Service, name string, p *problems) config.Switch {
	a, ok := annotation(svc, name)
	switch {
	case a.text == "true":
		return config.On
	case a.text == "false":
		return config.Off
	case ok:
		p.add(a.wrong("must be true or false; the default is used"))
	}
	return 0
}
