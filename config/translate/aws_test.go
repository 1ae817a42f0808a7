package translate

import (
	"cmp"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/config"
)

func TestUsherAndAWSAnnotationsAreTranslated(t *testing.T) {
	type says = map[string]string
	const ofNode, none = 7 * time.Minute, -1
	for name, c := range map[string]struct {
		annotations       says
		noLog             bool
		idle, drain, slow time.Duration
		unlogged          bool
		problem           string
	}{
		"no annotations":                             {},
		"usher's annotations":                        {annotations: says{"usher.io/connection-idle-timeout": "5m", "usher.io/drain-timeout": "10s", "usher.io/slow-start": "1m", "usher.io/access-log": "true"}, idle: 5 * time.Minute, drain: 10 * time.Second, slow: time.Minute},
		"usher's annotations, disabled":              {annotations: says{"usher.io/drain-timeout": "0", "usher.io/slow-start": "0s", "usher.io/access-log": "false"}, drain: none, slow: none, unlogged: true},
		"AWS annotations":                            {annotations: says{"service.beta.kubernetes.io/aws-load-balancer-connection-idle-timeout": "60", annotationAWSDraining: "true", annotationAWSDrainTimeout: "90", "service.beta.kubernetes.io/aws-load-balancer-access-log-enabled": "true"}, idle: time.Minute, drain: 90 * time.Second},
		"AWS draining without a timeout":             {annotations: says{annotationAWSDraining: "true"}, drain: 5 * time.Minute},
		"AWS drain timeout without draining enabled": {annotations: says{annotationAWSDrainTimeout: "90"}},
		"AWS annotations, disabled":                  {annotations: says{annotationAWSDraining: "false", annotationAWSDrainTimeout: "90", "service.beta.kubernetes.io/aws-load-balancer-access-log-enabled": "false"}, drain: none, unlogged: true},
		"usher's annotations override those of AWS":  {annotations: says{"usher.io/connection-idle-timeout": "5m", "usher.io/drain-timeout": "10s", "usher.io/access-log": "false", "service.beta.kubernetes.io/aws-load-balancer-connection-idle-timeout": "60", annotationAWSDraining: "false", "service.beta.kubernetes.io/aws-load-balancer-access-log-enabled": "true"}, idle: 5 * time.Minute, drain: 10 * time.Second, unlogged: true},
		"AWS access log without --access-log":        {annotations: says{"service.beta.kubernetes.io/aws-load-balancer-access-log-enabled": "true"}, noLog: true, unlogged: true},
		"access log without --access-log": {annotations: says{"usher.io/access-log": "true"}, noLog: true, unlogged: true,
			problem: `metadata.annotations[usher.io/access-log]: Invalid value: "true": no access log on this node; set --access-log`},
		"a drain timeout that is too short": {annotations: says{"usher.io/drain-timeout": "10ms"},
			problem: `metadata.annotations[usher.io/drain-timeout]: Invalid value: "10ms": must be 0 or a duration from 1s to 24h, such as 30s; the default is used`},
		"a slow start without a unit": {annotations: says{"usher.io/slow-start": "30"},
			problem: `metadata.annotations[usher.io/slow-start]: Invalid value: "30": must be 0 or a duration`},
		"an invalid boolean": {annotations: says{"usher.io/access-log": "yes"},
			problem: `metadata.annotations[usher.io/access-log]: Invalid value: "yes": must be true or false; the default is used`},
		"an invalid AWS boolean": {annotations: says{annotationAWSDraining: "on"},
			problem: `metadata.annotations[service.beta.kubernetes.io/aws-load-balancer-connection-draining-enabled]: Invalid value: "on": must be true or false`},
		"an AWS drain timeout with a unit": {annotations: says{annotationAWSDraining: "true", annotationAWSDrainTimeout: "90s"}, drain: 5 * time.Minute,
			problem: `metadata.annotations[service.beta.kubernetes.io/aws-load-balancer-connection-draining-timeout]: Invalid value: "90s": must be a number of seconds from 1 to 3600`},
		"an AWS idle timeout that is too long": {annotations: says{"service.beta.kubernetes.io/aws-load-balancer-connection-idle-timeout": "4001"},
			problem: `metadata.annotations[service.beta.kubernetes.io/aws-load-balancer-connection-idle-timeout]: Invalid value: "4001": must be a number of seconds from 1 to 4000; the default is used`},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			node := config.Policy{IdleTimeout: ofNode, DrainTimeout: ofNode, SlowStart: ofNode, AccessLog: !c.noLog}
			served, problems := Service(annotatedService(c.annotations), nil, config.Node{}, Options{NoAccessLog: c.noLog, Policy: node})
			want := func(d time.Duration) time.Duration { return max(0, cmp.Or(d, ofNode)) }
			for _, p := range served.Ports {
				if p.Protocol == config.UDP {
					g.Expect([]time.Duration{p.IdleTimeout, p.DrainTimeout}).To(Equal([]time.Duration{0, 0}))
				} else {
					g.Expect([]time.Duration{p.IdleTimeout, p.DrainTimeout}).To(Equal([]time.Duration{want(c.idle), want(c.drain)}))
				}
				g.Expect(p.SlowStart).To(Equal(want(c.slow)))
				g.Expect(p.AccessLog).To(Equal(!c.unlogged))
			}
			if c.problem == "" {
				g.Expect(problems).To(BeEmpty())
				return
			}
			g.Expect(problems).To(ConsistOf(MatchError(ContainSubstring(c.problem))))
		})
	}
}
