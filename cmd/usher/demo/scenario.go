package demo

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"

	"github.com/usherproxy/usher/config/strict"
	"github.com/usherproxy/usher/proxy/admin/api"
)

// Bounds of a scenario.
const (
	maxScenario = 64 << 10 // bytes
	maxRate     = 1000     // requests a second, of all Services together
	maxPlay     = time.Hour
)

// Scenario is a timetable of requests, faults and expected results.
type Scenario struct {
	title string
	steps []step
}

// scenarioFile is the file form of a Scenario; docs/course/README.md explains it.
type scenarioFile struct {
	Title string     `json:"title"`
	Steps []stepText `json:"steps"`
}

type stepText struct {
	At     string `json:"at"`
	Say    string `json:"say"`
	Load   string `json:"load"`   // "web 50/s"
	Break  string `json:"break"`  // "web-2 reset=30%"
	Repair string `json:"repair"` // "web-2", "all"
	Expect string `json:"expect"` // "web failed >= 3"
	By     string `json:"by"`     // of Expect
}

// step prints a text, and then does at most one thing.
type step struct {
	stepText
	at, by time.Duration // by is 0 unless something is expected

	load   load
	breaks api.DemoBreak
	expect expectation
}

// load is the request rate of a Service.
type load struct {
	service string
	rate    int // requests a second; 0 ends it
}

// ReadScenario reads a scenario from a file. The error lists all errors in the file.
func ReadScenario(file string) (*Scenario, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	s, errs := parseScenario(text)
	for i, err := range errs {
		errs[i] = fmt.Errorf("%s: %w", file, err)
	}
	return s, errors.Join(errs...)
}

func parseScenario(text []byte) (*Scenario, []error) {
	if len(text) > maxScenario {
		return nil, []error{fmt.Errorf("file has %d bytes: at most %d are allowed", len(text), maxScenario)}
	}
	var budget atomic.Int64
	budget.Store(maxScenario)
	documents := strict.Split(text)
	if len(documents) != 1 {
		return nil, []error{fmt.Errorf("file has %d YAML documents: a scenario is a single document", len(documents))}
	}
	values, syntax := strict.ToJSON(documents[0], &budget)
	var errs []error
	for _, err := range syntax {
		errs = append(errs, &err)
	}
	if len(errs) > 0 || len(values) != 1 {
		return nil, append(errs, errors.New("not a scenario"))
	}
	var in scenarioFile
	if errs, _ := strict.Decode(bytes.TrimSpace(values[0]), &in); len(errs) > 0 {
		return nil, errs
	}
	s := &Scenario{title: in.Title}
	if in.Title == "" || unprintable(in.Title) {
		errs = append(errs, fmt.Errorf("title: invalid value %q: must be one line of text", in.Title))
	}
	if len(in.Steps) == 0 {
		errs = append(errs, errors.New("steps: at least one step is required"))
	}
	var before time.Duration // the time when the previous step is over
	rates := map[string]int{}
	for i, text := range in.Steps {
		st, err := parseStep(text, before, rates)
		for _, err := range err {
			errs = append(errs, fmt.Errorf("steps[%d].%w", i, err))
		}
		s.steps, before = append(s.steps, st), max(before, st.at, st.by)
	}
	return s, errs
}

// parseStep parses a step, which must not start before the previous one is over, at before. rates
// are the request rates of the Services so far; parseStep updates them.
func parseStep(text stepText, before time.Duration, rates map[string]int) (st step, errs []error) {
	st = step{stepText: text}
	check := func(field string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", field, err))
		}
	}
	var err error
	st.at, err = moment(text.At, before)
	check("at", err)
	if unprintable(strings.ReplaceAll(text.Say, "\n", " ")) {
		check("say", errors.New("control characters are not allowed, except line ends"))
	}
	done := 0
	if text.Load != "" {
		done++
		st.load, err = parseLoad(text.Load, rates)
		check("load", err)
	}
	if text.Break != "" {
		done++
		st.breaks, err = parseBreak(text.Break)
		check("break", err)
	}
	if text.Repair != "" && text.Repair != "all" {
		_, err = serverNamed(text.Repair)
		check("repair", err)
	}
	if text.Repair != "" {
		done++
	}
	if text.Expect != "" {
		done++
		st.by = st.at
		st.expect, err = parseExpectation(text.Expect)
		check("expect", err)
	}
	switch {
	case text.By != "" && text.Expect == "":
		check("by", errors.New("allowed only with expect"))
	case text.By != "":
		st.by, err = moment(text.By, st.at)
		check("by", err)
	}
	if done > 1 || done == 0 && text.Say == "" {
		check("say", errors.New("a step needs say, or one of load, break, repair and expect, or both"))
	}
	return st, errs
}

// moment parses a time since the beginning of the play, which must be at least before.
func moment(text string, before time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	switch {
	case err != nil || d < 0 || d > maxPlay:
		return before, fmt.Errorf("invalid value %q: must be a time from 0s to 1h, such as 5s", text)
	case d < before:
		return before, fmt.Errorf("%s is before %s, the end of the previous step", d, before)
	}
	return d, nil
}

func unprintable(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) })
}

func parseLoad(text string, rates map[string]int) (load, error) {
	name, rate, _ := strings.Cut(text, " ")
	s, server, err := named(name)
	if err == nil && server {
		err = fmt.Errorf("%q is a server: must be a Service, such as %s", name, s.name)
	}
	if err != nil {
		return load{}, err
	}
	n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rate), "/s"))
	if err != nil || !strings.HasSuffix(rate, "/s") || n < 0 {
		return load{}, fmt.Errorf("invalid rate %q for %s: must be a rate such as 50/s", rate, name)
	}
	rates[s.name] = n
	sum := 0
	for _, r := range rates {
		sum += r
	}
	if sum > maxRate {
		return load{}, fmt.Errorf("%d requests per second over all Services: must be at most %d", sum, maxRate)
	}
	return load{s.name, n}, nil
}

func parseBreak(text string) (api.DemoBreak, error) {
	name, how, _ := strings.Cut(text, " ")
	s, err := serverNamed(name)
	if err == nil && how == "" {
		err = fmt.Errorf("a fault is required after the name of the server: one of %s", strings.Join(Faults(s.protocol), ", "))
	}
	if err == nil {
		_, err = parseFault(how, s.protocol, name)
	}
	return api.DemoBreak{Endpoint: name, How: how}, err
}

// serverNamed returns the Service of a server.
func serverNamed(name string) (service, error) {
	s, server, err := named(name)
	if err == nil && !server {
		err = fmt.Errorf("%q is a Service: must be one of its servers, such as %s", name, s.server(0))
	}
	return s, err
}

// expectation is an expected value of a Service or a server.
type expectation struct {
	service string
	server  string // "" for the Service itself
	what    string
	op      string
	state   string // expected if what is "state"
	count   int64
}

// Counts that a step can expect. All but open and ready count from the beginning of
// the play.
var (
	serviceCounts = map[string]func(api.Service) int64{
		"accepted":    func(s api.Service) int64 { return s.Totals.Accepted },
		"established": func(s api.Service) int64 { return s.Totals.Established },
		"failed":      func(s api.Service) int64 { return s.Totals.Failed },
		"retries":     func(s api.Service) int64 { return s.Totals.Retries },
		"open":        func(s api.Service) int64 { return s.Totals.Active },
		"ready":       func(s api.Service) int64 { return int64(s.Endpoints.Ready) },
	}
	serverCounts = map[string]func(api.Endpoint) int64{
		"connected": func(e api.Endpoint) int64 { return e.Connected },
		"failed":    func(e api.Endpoint) int64 { return e.Failed },
		"open":      func(e api.Endpoint) int64 { return e.Active },
	}
)

const (
	ofServices = "state, accepted, established, failed, retries, open, ready, answered, unanswered"
	ofServers  = "state, connected, failed, open"
)

func parseExpectation(text string) (e expectation, err error) {
	words := strings.Fields(text)
	if len(words) != 4 {
		return e, fmt.Errorf("invalid value %q: must have the form %q or %q", text, "web failed >= 3", "web-2 state = quarantined")
	}
	s, server, err := named(words[0])
	if err != nil {
		return e, err
	}
	e = expectation{service: s.name, what: words[1], op: words[2]}
	all := ofServices
	if server {
		e.server, all = strings.TrimPrefix(words[0], corev1.NamespaceDefault+"/"), ofServers
	}
	if !strings.Contains(", "+all+",", ", "+e.what+",") {
		return e, fmt.Errorf("invalid value %q: must be one of %s", e.what, all)
	}
	if e.what == "state" {
		e.state = words[3]
		return e, e.checkState()
	}
	if e.op != "=" && e.op != ">=" && e.op != "<=" {
		return e, fmt.Errorf("invalid operator %q: must be one of =, >=, <=", e.op)
	}
	if e.count, err = strconv.ParseInt(words[3], 10, 64); err != nil {
		return e, fmt.Errorf("invalid value %q: must be a number", words[3])
	}
	return e, nil
}

// checkState returns an error if the expected state is invalid.
func (e expectation) checkState() error {
	all := api.Names(api.ServiceStates)
	if e.server != "" {
		all = api.Names([]api.EndpointState{api.EndpointReady, api.EndpointOutlier, api.EndpointUnresponsive, api.EndpointQuarantined})
	}
	switch {
	case e.op != "=":
		return fmt.Errorf("operator %q is not allowed for a state: must be =", e.op)
	case !slices.Contains(all, e.state):
		return fmt.Errorf("invalid value %q: must be one of %s", e.state, strings.Join(all, ", "))
	}
	return nil
}

// holds reports whether n meets the expectation.
func (e expectation) holds(n int64) bool {
	switch e.op {
	case ">=":
		return n >= e.count
	case "<=":
		return n <= e.count
	}
	return n == e.count
}
