package config_test

import (
	"encoding/json"
	"os"
	"reflect"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/config"
)

// TestTextsOfEachSettingAreParsedAgain sets each field of a Policy that has a setting.
func TestTextsOfEachSettingAreParsedAgain(t *testing.T) {
	g := NewWithT(t)
	p := config.Policy{
		Scheduler: config.Maglev, EndpointLimit: 7, QueueTimeout: 90 * time.Second, SlowStart: time.Hour, IdleTimeout: 36 * time.Hour, HalfClosedTimeout: time.Minute,
		Probe:  config.Probe{Check: config.Check{Kind: config.CheckHTTP, Path: "/healthz", Port: 8080}, Interval: time.Minute, Timeout: 10 * time.Second, Rise: 1, Fall: 2},
		MaxAge: 90 * time.Minute, DrainTimeout: time.Second, UDPIdleTimeout: 1500 * time.Millisecond, AccessLog: true,
	}
	texts := p.Texts()
	g.Expect(texts).To(HaveLen(len(config.Settings)), "a setting is 0: set it above")
	g.Expect(config.ParsePolicy(texts)).To(Equal(p))
	g.Expect(texts).To(And(HaveKeyWithValue("connection-idle-timeout", "36h"), HaveKeyWithValue("max-connection-age", "1h30m"),
		HaveKeyWithValue("drain-timeout", "1s"), HaveKeyWithValue("queue-timeout", "1m30s"), HaveKeyWithValue("udp-idle-timeout", "1.5s")))
	g.Expect(config.ParsePolicy(map[string]string{"of-a-later-version": "1", "slow-start": "?", "max-connections-per-endpoint": "99999999999999999999"})).To(BeZero())
	g.Expect(config.Policy{}.Texts()).To(BeEmpty())
}

func TestEachFieldHasASetting(t *testing.T) {
	g := NewWithT(t)
	leaves, unanswered := 0, 1 // UnansweredTimeout has no setting
	for _, of := range []reflect.Type{reflect.TypeFor[config.Policy](), reflect.TypeFor[config.Probe]()} {
		leaves += of.NumField()
	}
	g.Expect(config.Settings).To(HaveLen(leaves-1-unanswered), "Policy.Probe itself is no setting; its fields are")
}

func TestSettingsWithoutAnEffectOnTheProtocolAreZero(t *testing.T) {
	g := NewWithT(t)
	all := config.DefaultPolicy()
	all.IdleTimeout, all.EndpointLimit = time.Hour, 3
	udp, tcp := all.For(config.UDP), all.For(config.TCP)
	g.Expect([]any{udp.IdleTimeout, udp.EndpointLimit, udp.QueueTimeout, udp.UDPIdleTimeout, udp.UnansweredTimeout}).To(HaveExactElements(
		BeZero(), BeZero(), BeZero(), Equal(2*time.Minute), Equal(time.Minute)))
	g.Expect([]any{tcp.IdleTimeout, tcp.EndpointLimit, tcp.UDPIdleTimeout, tcp.UnansweredTimeout}).To(HaveExactElements(
		Equal(time.Hour), Equal(3), BeZero(), BeZero()))
	g.Expect(all.For(config.SCTP)).To(Equal(tcp))
}

// TestDocsListEachSetting compares the table in docs/services.md with Settings.
func TestDocsListEachSetting(t *testing.T) {
	g := NewWithT(t)
	page, err := os.ReadFile("../docs/services.md")
	g.Expect(err).NotTo(HaveOccurred())
	for i := range config.Settings {
		s, p := &config.Settings[i], config.DefaultPolicy()
		flag, values := "`--"+s.FlagName()+"`", s.Range()
		if s.Name == "access-log" {
			flag = "–" // the flag is deprecated
		}
		if values != "" && s.Least == 0 {
			values += "; 0 = none"
		}
		g.Expect(string(page)).To(ContainSubstring("| `usher.io/%s` | %s (`%s`) | %s", s.Name, flag, s.Text(&p), values))
	}
}

// FuzzAnnotations expects that an invalid value changes nothing, and that a valid one is within the limits of the flag.
func FuzzAnnotations(f *testing.F) {
	for _, text := range []string{"0", "0s", "30s", "24h", "-1s", "1e9", "9223372036854775807", "true", "rr", "http:/x:80", "2562047h"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for i := range config.Settings {
			for _, set := range []func(*config.Policy, string) error{config.Settings[i].Annotate, config.Settings[i].AnnotateAWS} {
				p := config.DefaultPolicy()
				if err := set(&p, text); err == nil {
					if err := p.CheckFlags(); err != nil {
						t.Errorf("%q: %v", text, err)
					}
				} else if p != config.DefaultPolicy() {
					got, _ := json.Marshal(p.Texts())
					t.Errorf("%s: %q is invalid, and changes the policy to %s", config.Settings[i].Name, text, got)
				}
			}
		}
	})
}
