package config

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Setting is a field of a Policy that users can set: for all Services with a flag, for one with an annotation.
type Setting struct {
	// Name is the name of the annotation without the prefix "usher.io/". Flag is the name of the flag if it differs.
	Name, Flag string

	// Group is the flag's group in --help. Usage describes the flag: its effect, and then the meaning of 0.
	Group, Usage string

	// AWS is the name, without its prefix, of the annotation of AWS load balancers with the same effect; "" if there is
	// none. Its durations are in seconds.
	AWS string

	// Least and Most are the limits of a duration in nanoseconds, or of a number. If Least is 0, users may set 0
	// for none. If Most is 0, the flag has no maximum, and the annotation is limited to minAnnotated and maxAnnotated.
	// AWSMost is the maximum of AWS's annotation in seconds; if it is 0, Most applies.
	Least, Most, AWSMost int64

	// OnlyUDP says that the setting has no effect on other protocols, NotUDP that it has none on UDP.
	OnlyUDP, NotUDP bool

	// At returns the field: a *time.Duration, *int, *bool, *Scheduler or *Check.
	At func(*Policy) any
}

// The groups of flags in --help that contain settings.
const (
	GroupEndpoints = "Endpoints: which one gets a connection, and how"
	GroupTimeouts  = "Timeouts"
	GroupLimits    = "Limits and retention"
	GroupServers   = "Addresses that usher serves, and the access log"
)

// Settings are all settings of a Policy, in the order of their flags in --help. Flags, annotations, their limits and
// messages, and the texts for people are derived from this table.
var Settings = []Setting{
	{Name: "scheduler", Group: GroupEndpoints,
		Usage: "`name` of the scheduler that selects the endpoint of a new connection: " + strings.Join(SchedulerNames(), ", "),
		At:    func(p *Policy) any { return &p.Scheduler }},
	{Name: "probe", Group: GroupEndpoints,
		Usage: "`check` that probes all endpoints, including healthy ones: " + CheckForms,
		At:    func(p *Policy) any { return &p.Probe.Check }},
	{Name: "probe-interval", Group: GroupEndpoints, AWS: "healthcheck-interval", Least: int64(time.Second), Most: int64(time.Hour),
		Usage: "Time from the end of a --probe check to the next one of the same endpoint",
		At:    func(p *Policy) any { return &p.Probe.Interval }},
	{Name: "probe-timeout", Group: GroupEndpoints, AWS: "healthcheck-timeout", Least: int64(100 * time.Millisecond), Most: int64(2 * time.Minute), // Most: as with AWS
		Usage: "Timeout of a --probe check",
		At:    func(p *Policy) any { return &p.Probe.Timeout }},
	{Name: "probe-rise", Group: GroupEndpoints, AWS: "healthcheck-healthy-threshold", Least: 1, Most: 100,
		Usage: "Consecutive successful checks that end a quarantine started by --probe",
		At:    func(p *Policy) any { return &p.Probe.Rise }},
	{Name: "probe-fall", Group: GroupEndpoints, AWS: "healthcheck-unhealthy-threshold", Least: 1, Most: 100,
		Usage: "Consecutive failed checks that put an endpoint in quarantine",
		At:    func(p *Policy) any { return &p.Probe.Fall }},
	{Name: "max-connections-per-endpoint", Group: GroupEndpoints, Most: 1_000_000, NotUDP: true,
		Usage: "Maximum number of open TCP connections or SCTP associations per endpoint of a service port; when all endpoints are full, clients are queued. 0 = no limit",
		At:    func(p *Policy) any { return &p.EndpointLimit }},
	{Name: "queue-timeout", Group: GroupEndpoints, Least: int64(100 * time.Millisecond), NotUDP: true,
		Usage: "Maximum time that a queued client waits before usher resets it",
		At:    func(p *Policy) any { return &p.QueueTimeout }},
	{Name: "slow-start", Group: GroupEndpoints,
		Usage: "Time for a new or newly ready endpoint to ramp from 10% to its full share of new connections. 0 = no ramp. Ignored by sh, dh and maglev",
		At:    func(p *Policy) any { return &p.SlowStart }},
	{Name: "half-closed-timeout", Group: GroupTimeouts, NotUDP: true,
		Usage: "Idle timeout of a half-closed connection. 0 = none",
		At:    func(p *Policy) any { return &p.HalfClosedTimeout }},
	{Name: "connection-idle-timeout", Group: GroupTimeouts, AWS: "connection-idle-timeout", NotUDP: true,
		AWSMost: 4000, // https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_ConnectionSettings.html
		Usage:   "Idle timeout of a connection. 0 = none",
		At:      func(p *Policy) any { return &p.IdleTimeout }},
	{Name: "max-connection-age", Group: GroupTimeouts, NotUDP: true,
		Usage: "Maximum age of a connection, shortened at random by up to 10% to spread the closes. 0 = no limit",
		At:    func(p *Policy) any { return &p.MaxAge }},
	{Name: "drain-timeout", Flag: "endpoint-drain-timeout", Group: GroupTimeouts, NotUDP: true,
		Usage: "Time that a connection stays open after its endpoint is removed or starts terminating; usher then closes it when it is idle, at the latest after another 1/8 of this time. 0 = no limit",
		At:    func(p *Policy) any { return &p.DrainTimeout }},
	{Name: "udp-idle-timeout", Group: GroupLimits, Least: int64(100 * time.Millisecond), OnlyUDP: true,
		Usage: "Idle timeout of a UDP session once its endpoint has responded; before that, 1m at most, or the value that the Service sets",
		At:    func(p *Policy) any { return &p.UDPIdleTimeout }},
	{Name: "access-log", Flag: "access-log-default", Group: GroupServers, AWS: "access-log-enabled",
		At: func(p *Policy) any { return &p.AccessLog }},
}

// FlagName returns the name of the flag.
func (s *Setting) FlagName() string {
	if s.Flag != "" {
		return s.Flag
	}
	return s.Name
}

// CheckFlags returns an error that names the first flag whose value in p is outside its limits.
func (p *Policy) CheckFlags() error {
	for i := range Settings {
		s := &Settings[i]
		v := reflect.ValueOf(s.At(p)).Elem()
		if !v.CanInt() { // no duration or number
			continue
		}
		as := func(n int64) any { return reflect.ValueOf(n).Convert(v.Type()) }
		if v.Int() < s.Least {
			return fmt.Errorf("--%s: invalid value \"%v\": must be at least %v", s.FlagName(), v, as(s.Least))
		}
		if s.Most > 0 && v.Int() > s.Most {
			return fmt.Errorf("--%s: invalid value \"%v\": must be at most %v", s.FlagName(), v, as(s.Most))
		}
	}
	return nil
}

// The limits of annotations of durations whose Most is 0. Below 1 s, a UDP session could end before its answer; above
// a day, it would outlive most clients.
const (
	minAnnotated = time.Second
	maxAnnotated = 24 * time.Hour
)

// Annotate sets the field of p to the value of an annotation. If that is invalid, it leaves p unchanged and returns the
// rule as an error, such as "must be true or false".
func (s *Setting) Annotate(p *Policy, text string) error {
	changed := *p
	err := s.parse(&changed, text)
	switch v := s.At(&changed).(type) {
	case *time.Duration:
		if err != nil || !s.allows(int64(*v)) {
			return fmt.Errorf("must be %sa duration from %s, such as 30s", s.orNone(), s.Range())
		}
	case *int:
		if err != nil || !s.allows(int64(*v)) {
			return fmt.Errorf("must be %sa number from %s", s.orNone(), s.Range())
		}
	}
	if err == nil {
		*p = changed
	}
	return err
}

// limits returns the limits of the annotation's values other than 0.
func (s *Setting) limits() (least, most int64) {
	if s.Most == 0 {
		return max(s.Least, int64(minAnnotated)), int64(maxAnnotated)
	}
	return max(s.Least, 1), s.Most
}

func (s *Setting) allows(n int64) bool {
	least, most := s.limits()
	return n >= least && n <= most || n == 0 && s.Least == 0
}

// Range returns the values of the annotation apart from 0, such as "1s to 24h"; "" if it is no duration or number.
func (s *Setting) Range() string {
	least, most := s.limits()
	switch s.At(new(Policy)).(type) {
	case *time.Duration:
		return short(time.Duration(least)) + " to " + short(time.Duration(most))
	case *int:
		return fmt.Sprintf("%d to %d", least, most)
	}
	return ""
}

// AnnotateAWS is like Annotate for the value of AWS's annotation.
func (s *Setting) AnnotateAWS(p *Policy, text string) error {
	field, ok := s.At(p).(*time.Duration)
	if !ok {
		return s.Annotate(p, text)
	}
	most := s.AWSMost
	if most == 0 {
		most = s.Most / int64(time.Second)
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 || n > most {
		return fmt.Errorf("must be a number of seconds from 1 to %d", most)
	}
	*field = time.Duration(n) * time.Second
	return nil
}

func (s *Setting) orNone() string {
	if s.Least == 0 {
		return "0 or "
	}
	return ""
}

var errNotBool = errors.New("must be true or false")

// parse sets the field of p to text, without regard to limits.
func (s *Setting) parse(p *Policy, text string) (err error) {
	switch v := s.At(p).(type) {
	case *time.Duration:
		*v, err = time.ParseDuration(text)
	case *int:
		*v, err = strconv.Atoi(text)
	case *bool:
		if *v = text == "true"; !*v && text != "false" {
			return errNotBool
		}
	case encoding.TextUnmarshaler:
		return v.UnmarshalText([]byte(text))
	}
	return err
}

// For returns p without the settings that have no effect on a protocol.
func (p Policy) For(protocol Protocol) Policy {
	for i := range Settings {
		if s := &Settings[i]; s.OnlyUDP && protocol != UDP || s.NotUDP && protocol == UDP {
			reflect.ValueOf(s.At(&p)).Elem().SetZero()
		}
	}
	if p.UDPIdleTimeout == 0 {
		p.UnansweredTimeout = 0
	}
	return p
}

// Texts returns the settings of p that are not 0, by name, in the form in which people write them.
func (p Policy) Texts() map[string]string {
	out := map[string]string{}
	for i := range Settings {
		if s := &Settings[i]; !reflect.ValueOf(s.At(&p)).Elem().IsZero() {
			out[s.Name] = s.Text(&p)
		}
	}
	return out
}

// Text returns the field of p as people write it.
func (s *Setting) Text(p *Policy) string {
	if d, is := s.At(p).(*time.Duration); is {
		return short(*d)
	}
	return fmt.Sprint(reflect.ValueOf(s.At(p)).Elem().Interface())
}

// ParsePolicy returns the policy with these Texts. It ignores names and values that it cannot parse: they may come from
// another version of usher. It checks no limits.
func ParsePolicy(texts map[string]string) (p Policy) {
	for i := range Settings {
		parsed := p
		if text, ok := texts[Settings[i].Name]; ok && Settings[i].parse(&parsed, text) == nil {
			p = parsed
		}
	}
	return p
}

// short returns d without minutes and seconds that are 0: "24h", "1h30m".
func short(d time.Duration) string {
	if d == 0 {
		return "0"
	}
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}
