package admin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/balance"
)

// Limits of the search for problems.
const (
	maxProblems  = 100
	problemsCost = 50              // searches take at most 1/problemsCost of the time
	problemsRest = 2 * time.Second // shortest interval between searches, however many readers there are
	lostFor      = 5 * time.Minute // how long lost lines of the access log count as a problem
	nearLimit    = 0.9
	maxSkew      = 10 * time.Second // between clocks
)

// problemFinder finds the current problems that usher knows.
type problemFinder struct {
	mu    sync.Mutex
	next  time.Time // next search
	waits bool      // the last search was before the initial sync
	found []api.StatusProblem
	total int
	says  string
	clear time.Time            // when the last problem ended; zero if there was none
	since map[string]time.Time // of problems without a time of their own
}

// problems returns the first maxProblems problems, their total number, and a summary in one sentence. Until the next
// search is due, it repeats the last result.
func (a *API) problems(stats *proxy.Stats, now time.Time) (list []api.StatusProblem, total int, attention string) {
	f := &a.finder
	f.mu.Lock()
	defer f.mu.Unlock()
	waits := a.proxy.SyncStatus().LastQueued.IsZero()
	if now.Before(f.next) && f.waits == waits { // problems from before the initial sync are outdated
		return f.found, f.total, f.says
	}
	f.waits = waits
	began := time.Now()
	all := slices.Concat(a.nodeProblems(stats, now), a.serviceProblems(now))
	before := f.since
	f.since = map[string]time.Time{}
	for i := range all {
		p := &all[i]
		key := p.Object + "\x00" + p.Reason
		if p.Since.IsZero() {
			if p.Since = before[key]; p.Since.IsZero() {
				p.Since = now
			}
			f.since[key] = p.Since
		}
	}
	if len(all) == 0 && f.total > 0 {
		f.clear = now
	}
	f.total, f.says = len(all), inOneSentence(all)
	f.next = now.Add(max(problemsRest, problemsCost*time.Since(began)))
	f.found = append([]api.StatusProblem{}, all[:min(len(all), maxProblems)]...) // encode none as [], not as null
	return f.found, f.total, f.says
}

// since returns since when usher as a whole is in the state that problems found.
func (a *API) since() time.Time {
	f := &a.finder
	f.mu.Lock()
	defer f.mu.Unlock()
	first := f.clear
	if first.IsZero() {
		first = a.started
	}
	for i, p := range f.found {
		if i == 0 || p.Since.Before(first) {
			first = p.Since
		}
	}
	return first
}

// inOneSentence summarizes the problems.
func inOneSentence(all []api.StatusProblem) string {
	var services, others []string
	for _, p := range all {
		name, is := strings.CutPrefix(p.Object, "Service ")
		switch {
		case is && len(services) > 0 && services[len(services)-1] == name: // those of one Service are adjacent
		case is:
			services = append(services, name)
		case !is && p.Object != "usher":
			others = append(others, p.Object)
		case !is:
			others = append(others, p.Message)
		}
	}
	var parts []string
	const most = 3
	if n := len(services); n > 0 {
		text := fmt.Sprintf("%d Services need attention: ", n)
		if n == 1 {
			text = "1 Service needs attention: "
		}
		text += strings.Join(services[:min(n, most)], ", ")
		if n > most {
			text += fmt.Sprintf(" and %d more", n-most)
		}
		parts = append(parts, text)
	}
	if others = slices.Compact(others); len(others) > most {
		others = append(others[:most], fmt.Sprintf("and %d more", len(others)-most))
	}
	parts = append(parts, others...)
	return cmp.Or(strings.Join(parts, "; "), "no problems")
}

// nodeProblems returns the problems of usher as a whole.
func (a *API) nodeProblems(s *proxy.Stats, now time.Time) (list []api.StatusProblem) {
	add := func(reason, message, remedy string, since time.Time) {
		list = append(list, api.StatusProblem{Object: "usher", Reason: reason, Message: message, Remedy: remedy, Since: since})
	}
	if of := a.opts.Health.APIServer; of != nil {
		now := of()
		if skew := now.Skew.Round(time.Second); skew.Abs() >= maxSkew {
			add("ClockSkew", fmt.Sprintf("the clocks of the API server and this node differ by %s", skew.Abs()), "check both with timedatectl; certificates, tokens and log times depend on the clock", time.Time{})
		}
		waits := a.proxy.SyncStatus().LastQueued.IsZero()
		switch {
		case now.Reason == "" && waits:
			add("NotServing", "waiting for the initial list from the API server; no Service is served yet", "", time.Time{})
		case now.Reason != "" && waits:
			add("NotServing", "the API server sends no Services; none is served ("+now.Reason+"): "+now.Error, now.Remedy, now.Since)
		case now.Reason != "":
			add("APIServerFailed", "the API server sends no changes; serving the last known state ("+now.Reason+"): "+now.Error, now.Remedy, now.Since)
		}
	}
	if sync := a.proxy.SyncStatus(); sync.Err != nil {
		add("PortalFailed", fmt.Sprintf("failed to update the %s portal: %v", a.proxy.Portal.Mode(), sync.Err), "usher get portals -A shows the differences; usher keeps retrying", sync.Pending)
	}
	const descriptors = "descriptors"
	for _, limit := range []struct {
		what, remedy string
		now, most    int64
	}{
		{"connections", "raise --max-connections or the open files limit; list open connections with usher get connections -A --sort duration", s.Open, s.Limit},
		{"UDP sessions", "raise --max-udp-sessions or the open files limit", s.Sessions.Open, s.Sessions.Limit},
		{descriptors, "raise the open files limit (ulimit -n, LimitNOFILE=)", s.Descriptors, s.DescriptorLimit},
	} {
		if limit.what == descriptors && slices.ContainsFunc(list, func(p api.StatusProblem) bool { return p.Reason == "NearLimit" }) {
			continue // the others use them up
		}
		if limit.most > 0 && float64(limit.now) >= nearLimit*float64(limit.most) {
			add("NearLimit", fmt.Sprintf("%d of %d %s are in use", limit.now, limit.most, limit.what), limit.remedy, time.Time{})
		}
	}
	if a.opts.AccessLog != nil {
		if lost, last := a.opts.AccessLog.Lost(), a.opts.AccessLog.LastLost(); lost > 0 && now.Before(last.Add(lostFor)) {
			add("AccessLogLost", fmt.Sprintf("%d access log lines lost since the start: writing is slower than connections end", lost), "a faster disk, or a larger --trace-events", last)
		}
	}
	return list
}

// serviceProblems returns the problems of Services, worst first, and of other objects.
func (a *API) serviceProblems(now time.Time) (list []api.StatusProblem) {
	reports := a.reportsOf()
	rank := map[string]int{}
	add := func(object, reason, message, remedy string, since time.Time, at int) {
		list = append(list, api.StatusProblem{Object: object, Reason: reason, Message: message, Remedy: remedy, Since: since})
		rank[object] = max(rank[object], at)
	}
	worst := len(api.ServiceStates)
	report := func(r config.Report) {
		at := worst
		if r.Served { // unserved objects come first
			at = 0
		}
		add(r.Object, r.Reason, r.Message, r.Remedy, r.Since, at)
	}
	all := groups(a.proxy.Status())
	a.starts.forget(all)
	for _, g := range all {
		g.look(now)
		var since time.Time
		if is := g.state(now); is != api.ServiceRejected { // the source's reports cover rejected ones
			since = a.starts.service(g, is, now)
		}
		name := g.name()
		object := "Service " + name.String()
		for _, p := range g.portProblems() {
			text := "port " + p.ports[0] + " is"
			if len(p.ports) > 1 {
				text = "ports " + strings.Join(p.ports, ", ") + " are"
			}
			add(object, string(p.Reason), text+" not served as configured: "+p.Err.Error(), "usher diagnose "+name.String(), p.Since, worst)
		}
		state, message := g.trouble(a.proxy.Portal.Traits(), now)
		isCause := func(r config.Report) bool { return state == api.ServiceNoEndpoints && r.Reason == "PortNameDiffers" }
		for _, r := range reports[name] {
			if isCause(r) {
				message += "; " + r.Object + ": " + r.Message
			}
		}
		if message != "" {
			add(object, string(state), message, "usher diagnose "+name.String(), since, state.Badness())
		}
		for _, r := range reports[name] {
			if isCause(r) {
				continue
			}
			r.Remedy = cmp.Or(r.Remedy, "usher diagnose "+name.String())
			report(r)
		}
		delete(reports, name)
	}
	for _, of := range reports {
		for _, r := range of {
			report(r)
		}
	}
	slices.SortStableFunc(list, func(a, b api.StatusProblem) int {
		return cmp.Or(cmp.Compare(rank[b.Object], rank[a.Object]), cmp.Compare(a.Object, b.Object))
	})
	return list
}

// portProblem is a problem of one or more ports of a Service, with the earliest start.
type portProblem struct {
	*proxy.Problem
	ports []string
}

// portProblems returns the problems of a Service's ports: those with the same reason and error once.
func (g group) portProblems() (all []portProblem) {
	for i := range g {
		p := g[i].Problem
		if p == nil {
			continue
		}
		at := slices.IndexFunc(all, func(o portProblem) bool { return o.Reason == p.Reason && o.Err.Error() == p.Err.Error() })
		if at < 0 {
			at = len(all)
			all = append(all, portProblem{Problem: p})
		}
		if p.Since.Before(all[at].Since) {
			all[at].Problem = p
		}
		all[at].ports = append(all[at].ports, g[i].Port.ID.String())
	}
	return all
}

// trouble describes the problem of a Service's endpoints; "" if there is none. Terminating endpoints are not
// a problem.
func (g group) trouble(traits portal.Traits, now time.Time) (state api.ServiceState, message string) {
	state = api.ServiceOK
	for i := range g {
		v := &g[i]
		s := portState(v, now)
		text := ""
		switch s {
		case api.ServiceNoEndpoints:
			text = fmt.Sprintf("none of %d endpoints is usable", len(v.Endpoints))
		case api.ServiceNoLocalEndpoints:
			text = "internalTrafficPolicy is Local, and no usable endpoint is on this node: clients are refused"
			if traits.Redirects {
				text = "internalTrafficPolicy is Local, and no usable endpoint is on this node: clients' packets are dropped"
			}
		case api.ServiceDown, api.ServiceDegraded:
			text = badEndpoints(v, now)
		}
		if text != "" && s.Badness() > state.Badness() {
			state, message = s, text
		}
	}
	return state, message
}

// badEndpoints describes which endpoints of a port have problems, and why.
func badEndpoints(v *proxy.PortView, now time.Time) string {
	var bad []string
	for _, e := range v.Endpoints {
		switch state := stateOf(v, e, now); state {
		case api.EndpointReady, api.EndpointTerminating:
		default:
			bad = append(bad, badEndpoint(v, e, state, now))
		}
	}
	if len(bad) == 0 {
		return ""
	}
	const most = 3
	text := fmt.Sprintf("%d of %d endpoints: %s", len(bad), len(v.Endpoints), strings.Join(bad[:min(len(bad), most)], "; "))
	if len(bad) > most {
		text += "; …"
	}
	return text
}

func badEndpoint(v *proxy.PortView, e *balance.Endpoint, state api.EndpointState, now time.Time) string {
	text := e.Addr.String()
	if e.Pod != "" {
		text += " (" + e.Pod + ")"
	}
	text += " " + string(state)
	if q := quarantine(e, now); q != nil {
		text += ", " + q.Cause
	} else if state == api.EndpointUnresponsive {
		l := recentLatencyOf(e, now)
		of := fmt.Sprint(withoutResponse(e, v.Waiting(now, longWait), now))
		if l.firstByte.Number() == 0 {
			of = "any"
		}
		text += fmt.Sprintf(", no response for %s of %d recent clients", of, clientsWaited(e, l, now))
	}
	return text
}

// reportsOf returns the source's reports by the Service that they are about.
func (a *API) reportsOf() map[types.NamespacedName][]config.Report {
	by := map[types.NamespacedName][]config.Report{}
	if a.opts.Reports != nil {
		for _, r := range a.opts.Reports() {
			by[r.Service] = append(by[r.Service], r)
		}
	}
	return by
}

// rejected returns, as groups, the matching Services that are not served because of the source's reports.
func (a *API) rejected(by map[types.NamespacedName][]config.Report, match func(types.NamespacedName) bool, served []group) (list []group) {
	is := map[types.NamespacedName]bool{}
	for _, g := range served {
		is[g.name()] = true
	}
	for name, reports := range by {
		wrong := slices.ContainsFunc(reports, func(r config.Report) bool { return !r.Served })
		if name != (types.NamespacedName{}) && wrong && match(name) && !is[name] {
			id := config.PortID{Namespace: name.Namespace, Service: name.Name}
			list = append(list, group{{Port: config.ServicePort{ID: id}}})
		}
	}
	return list
}

// reported returns reports in the API's form.
func reported(reports []config.Report) (list []api.Problem) {
	for _, r := range reports {
		list = append(list, api.Problem{Reason: r.Reason, Message: r.Message})
	}
	return list
}
