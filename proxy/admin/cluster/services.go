package cluster

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
)

const (
	maxServices = 50 // in a list
	mostFailed  = 20 // number of Services with the most failures that each node is queried for
)

// Services returns the Services that match q, or all, worst first.
func (v *View) Services(ctx context.Context, q string) (api.ClusterServiceList, error) {
	return ask(ctx, v, "services "+q, minFresh, func(ctx context.Context) (list api.ClusterServiceList, err error) {
		f, err := v.fleet(ctx)
		if err != nil {
			return list, err
		}
		list = api.ClusterServiceList{Asked: time.Now(), Items: []api.ClusterService{}}
		var names []string
		if names, list.Total, err = v.candidates(ctx, f, q); err != nil || len(names) == 0 {
			return list, err
		}
		answers := each(ctx, v, f.nodes, func(ctx context.Context, n Node) (api.ServiceList, error) {
			return n.Client.Services(ctx, client.ServiceQuery{Names: names, Max: maxServices})
		})
		merged := map[string]*api.ClusterService{}
		for _, t := range answers {
			for _, s := range t.answer.Items {
				key := s.Namespace + "/" + s.Name
				if merged[key] == nil {
					merged[key] = &api.ClusterService{Namespace: s.Namespace, Name: s.Name, States: map[api.ServiceState]int{}}
				}
				addService(merged[key], s)
			}
		}
		messages := f.messages()
		for key, s := range merged {
			s.Message = messages[key].message
			list.Items = append(list.Items, *s)
		}
		slices.SortFunc(list.Items, worstFirst)
		return list, ctx.Err()
	})
}

// addService adds one node's data about a Service.
func addService(to *api.ClusterService, s api.Service) {
	if to.State == "" || s.State.Badness() > to.State.Badness() {
		to.State = s.State
	}
	to.States[s.State]++
	to.NodeCount++
	if s.Endpoints.Quarantined+s.Endpoints.Outlier+s.Endpoints.Unresponsive > 0 {
		to.FailingOn++
	}
	to.EndpointCount = max(to.EndpointCount, s.Endpoints.Total)
	to.Totals = to.Totals.Plus(s.Totals)
	if s.Latency != nil {
		to.ConnectP99Ms = max(to.ConnectP99Ms, s.Latency.ConnectP99Ms)
	}
}

func worstFirst(a, b api.ClusterService) int {
	return cmp.Or(
		cmp.Compare(b.State.Badness(), a.State.Badness()), cmp.Compare(b.States[b.State], a.States[a.State]),
		cmp.Compare(b.Totals.Failed, a.Totals.Failed), cmp.Compare(b.Totals.Accepted, a.Totals.Accepted),
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// trouble is a Service's problem.
type trouble struct {
	nodes   int // that report it
	worst   api.ServiceState
	message string // of the worst state
}

// messages returns the problems by Service.
func (f *fleet) messages() map[string]trouble {
	all := map[string]trouble{}
	for i := range f.status {
		for _, p := range f.status[i].answer.Problems {
			key, is := strings.CutPrefix(p.Object, "Service ")
			if !is {
				continue
			}
			t := all[key]
			t.nodes++
			if state := api.ServiceState(p.Reason); t.message == "" || state.Badness() > t.worst.Badness() {
				t.worst, t.message = state, p.Message
			}
			all[key] = t
		}
	}
	return all
}

// candidates returns the names of the Services to examine, and the total number of Services. All nodes of a
// cluster know the same Services, so the names and the total come from one node.
func (v *View) candidates(ctx context.Context, f fleet, q string) (names []string, total int, err error) {
	list, err := v.anyList(ctx, f, client.ServiceQuery{Text: q, Sort: api.SortConnections, Max: maxServices})
	if err != nil {
		return nil, 0, err
	}
	add := func(name string) {
		if len(names) < maxServices && isService(name) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if q == "" {
		problems := f.messages()
		for _, key := range slices.SortedFunc(maps.Keys(problems), func(a, b string) int {
			x, y := problems[a], problems[b]
			return cmp.Or(cmp.Compare(y.worst.Badness(), x.worst.Badness()), cmp.Compare(y.nodes, x.nodes), cmp.Compare(a, b))
		}) {
			add(key)
		}
		failures := map[string]int64{}
		for _, t := range f.status {
			for _, s := range t.answer.failed {
				if n := s.Totals.Failed + s.Totals.Retries; n > 0 {
					failures[s.Namespace+"/"+s.Name] += n
				}
			}
		}
		for _, key := range slices.SortedFunc(maps.Keys(failures), func(a, b string) int {
			return cmp.Or(cmp.Compare(failures[b], failures[a]), cmp.Compare(a, b))
		}) {
			add(key)
		}
	}
	for _, s := range list.Items {
		add(s.Namespace + "/" + s.Name)
	}
	return names, list.Total, nil
}

// isService reports whether key is namespace/name and not too long. A single key of another form would make nodes
// refuse the query for all names.
func isService(key string) bool {
	namespace, name, _ := strings.Cut(key, "/")
	return namespace != "" && name != "" && !strings.Contains(name, "/") && len(url.QueryEscape(key)) <= maxQuery
}

// anyList returns a list of Services from the first node that answers.
func (v *View) anyList(ctx context.Context, f fleet, q client.ServiceQuery) (list api.ServiceList, err error) {
	for i, n := range f.nodes {
		if err = f.status[i].err; err != nil {
			continue
		}
		first := each(ctx, v, []Node{n}, func(ctx context.Context, n Node) (api.ServiceList, error) { return n.Client.Services(ctx, q) })[0]
		if err = first.err; err == nil {
			return first.answer, nil
		}
	}
	if len(f.nodes) == 0 {
		return list, errors.New("no usher instance was found on any node")
	}
	return list, errNobody
}

// errNobody is the error if no node answers.
var errNobody = &api.Error{Code: 502, Message: "no usher instance responds"}
