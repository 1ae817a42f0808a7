package translate

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/config"
)

func TestUsherAndAWSAnnotationsAreTranslated(t *testing.T) {
	type says = map[string]string
	for name, c := range map[string]struct {
		annotations       says
		noLog             bool
		idle, drain, slow time.Duration
		log               config.Switch
		problem           string
	}{
		"no annotations":                             {},
		"usher's annotations":                        {annotations: says{AnnotationIdleTimeout: "5m", AnnotationDrainTimeout: "10s", AnnotationSlowStart: "1m", AnnotationAccessLog: "true"}, idle: 5 * time.Minute, drain: 10 * time.Second, slow: time.Minute, log: config.On},
		"usher's annotations, disabled":              {annotations: says{AnnotationDrainTimeout: "0", AnnotationSlowStart: "0s", AnnotationAccessLog: "false"}, drain: config.Never, slow: config.Never, log: config.Off},
		"AWS annotations":                            {annotations: says{AnnotationAWSIdleTimeout: "60", AnnotationAWSDraining: "true", AnnotationAWSDrainTimeout: "90", AnnotationAWSAccessLog: "true"}, idle: time.Minute, drain: 90 * time.Second, log: config.On},
		"AWS draining without a timeout":             {annotations: says{AnnotationAWSDraining: "true"}, drain: 5 * time.Minute},
		"AWS drain timeout without draining enabled": {annotations: says{AnnotationAWSDrainTimeout: "90"}},
		"AWS annotations, disabled":                  {annotations: says{AnnotationAWSDraining: "false", AnnotationAWSDrainTimeout: "90", AnnotationAWSAccessLog: "false"}, drain: config.Never, log: config.Off},
		"usher's annotations override those of AWS":  {annotations: says{AnnotationIdleTimeout: "5m", AnnotationDrainTimeout: "10s", AnnotationAccessLog: "false", AnnotationAWSIdleTimeout: "60", AnnotationAWSDraining: "false", AnnotationAWSAccessLog: "true"}, idle: 5 * time.Minute, drain: 10 * time.Second, log: config.Off},
		"AWS access log without --access-log":        {annotations: says{AnnotationAWSAccessLog: "true"}, noLog: true, log: config.On},
		"access log without --access-log": {annotations: says{AnnotationAccessLog: "true"}, noLog: true, log: config.On,
			problem: `metadata.annotations[usher.io/access-log]: Invalid value: "true": no access log on this node; set --access-log`},
		"a drain timeout that is too short": {annotations: says{AnnotationDrainTimeout: "10ms"},
			problem: `metadata.annotations[usher.io/drain-timeout]: Invalid value: "10ms": must be 0 or a duration from 1s to 24h, such as 30s; the default is used`},
		"a slow start without a unit": {annotations: says{AnnotationSlowStart: "30"},
			problem: `metadata.annotations[usher.io/slow-start]: Invalid value: "30": must be 0 or a duration`},
		"an invalid boolean": {annotations: says{AnnotationAccessLog: "yes"},
			problem: `metadata.annotations[usher.io/access-log]: Invalid value: "yes": must be true or false; the default is used`},
		"an invalid AWS boolean": {annotations: says{AnnotationAWSDraining: "on"},
			problem: `metadata.annotations[service.beta.kubernetes.io/aws-load-balancer-connection-draining-enabled]: Invalid value: "on": must be true or false`},
		"an AWS drain timeout with a unit": {annotations: says{AnnotationAWSDraining: "true", AnnotationAWSDrainTimeout: "90s"}, drain: 5 * time.Minute,
			problem: `metadata.annotations[service.beta.kubernetes.io/aws-load-balancer-connection-draining-timeout]: Invalid value: "90s": must be a number of seconds from 1 to 3600`},
		"an AWS idle timeout that is too long": {annotations: says{AnnotationAWSIdleTimeout: "4001"},
			problem: `metadata.annotations[service.beta.kubernetes.io/aws-load-balancer-connection-idle-timeout]: Invalid value: "4001": must be a number of seconds from 1 to 4000; the default is used`},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			served, problems := Service(annotatedService(c.annotations), nil, config.Node{}, Options{NoAccessLog: c.noLog})
			for _, p := range served.Ports {
				if p.Protocol == config.UDP {
					g.Expect([]time.Duration{p.IdleTimeout, p.DrainTimeout}).To(Equal([]time.Duration{0, 0}))
				} else {
					g.Expect([]time.Duration{p.IdleTimeout, p.DrainTimeout}).To(Equal([]time.Duration{c.idle, c.drain}))
				}
				g.Expect(p.SlowStart).To(Equal(c.slow))
				g.Expect(p.AccessLog).To(Equal(c.log))
			}
			if c.problem == "" {
				g.Expect(problems).To(BeEmpty())
				return
			}
			g.Expect(problems).To(ConsistOf(MatchError(ContainSubstring(c.problem))))
		})
	}
}
