package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/usherproxy/usher/proxy/admin/api"
)

// All is the value of a query's Max for whole lists.
const All = 0

// ServiceQuery selects Services. Empty fields match all.
type ServiceQuery struct {
	Namespace, Name string
	Names           []string // namespace/name of each; at most several dozen
	Text            string   // part of a name, VIP, endpoint or Pod
	State           string
	Protocol        string
	Sort            string // api.SortName and so on
	Max             int    // at most
}

func (q ServiceQuery) values() url.Values {
	v := values("namespace", q.Namespace, "name", q.Name, "q", q.Text, "state", q.State, "protocol", q.Protocol, "sort", q.Sort)
	for _, name := range q.Names {
		v.Add("service", name)
	}
	return v
}

// ConnectionQuery selects connections. Empty fields match all.
type ConnectionQuery struct {
	State    string // open, ended or all; the default depends on the other fields, see the parameter state
	Service  string // namespace/name
	Client   string // address, address and port, or network
	Endpoint string // address, address and port, or Pod
	Protocol string
	End      string        // see /api/v1/ends
	Retried  bool          // only those with more than one attempt
	Outcome  string        // ok, retried, slow, failed, no-response; separated by commas
	Slower   time.Duration // clients waited longer: see the parameter slowerThan
	Last     time.Duration // ended within this time before now
	Sort     string        // api.SortNewest and so on
	Max      int           // at most
}

func (q ConnectionQuery) values() url.Values {
	v := values("state", q.State, "service", q.Service, "client", q.Client, "endpoint", q.Endpoint, "protocol", q.Protocol, "end", q.End, "outcome", q.Outcome, "sort", q.Sort)
	setDuration(v, "slowerThan", q.Slower)
	setDuration(v, "last", q.Last)
	if q.Retried {
		v.Set("retried", "true")
	}
	return v
}

// AffinityQuery selects clients. Empty fields match all.
type AffinityQuery struct {
	Service, Client, Endpoint string
}

// ExplainQuery is the input of Explain.
type ExplainQuery struct {
	Service string // namespace/name
	Port    string // name or number
	Client  string // an address
	VIP     string // an address, or address and port
}

// Status returns the state of the proxy as a whole.
func (c *Client) Status(ctx context.Context) (out api.Status, err error) {
	return out, c.get(ctx, "/status", nil, &out)
}

// Services returns summaries of Services.
func (c *Client) Services(ctx context.Context, q ServiceQuery) (api.ServiceList, error) {
	l, err := pages[api.Service](ctx, c, "/services", q.values(), q.Max)
	return api.ServiceList{Page: l.Page, Items: l.Items}, err
}

// Service returns the details of one Service.
func (c *Client) Service(ctx context.Context, namespace, name string) (out api.ServiceDetail, err error) {
	return out, c.get(ctx, "/services/"+url.PathEscape(namespace)+"/"+url.PathEscape(name), nil, &out)
}

// Connections returns connections in the order of q.Sort, by default newest first.
func (c *Client) Connections(ctx context.Context, q ConnectionQuery) (api.ConnectionList, error) {
	l, err := pages[api.Connection](ctx, c, "/connections", q.values(), q.Max)
	return api.ConnectionList(l), err
}

// Connection returns one connection.
func (c *Client) Connection(ctx context.Context, id uint64) (out api.Connection, err error) {
	return out, c.get(ctx, "/connections/"+strconv.FormatUint(id, 10), nil, &out)
}

// Affinity returns the endpoint that each client has by session affinity.
func (c *Client) Affinity(ctx context.Context, q AffinityQuery) (api.AffinityList, error) {
	l, err := pages[api.AffinityEntry](ctx, c, "/affinity", values("service", q.Service, "client", q.Client, "endpoint", q.Endpoint), All)
	return api.AffinityList{Page: l.Page, Items: l.Items}, err
}

// Portals returns the portal's rules.
func (c *Client) Portals(ctx context.Context) (out api.Portals, err error) {
	return out, c.get(ctx, "/portals", nil, &out)
}

// Explain returns what would happen to a connection.
func (c *Client) Explain(ctx context.Context, q ExplainQuery) (out api.Explanation, err error) {
	return out, c.get(ctx, "/explain", values("service", q.Service, "port", q.Port, "client", q.Client, "vip", q.VIP), &out)
}

// list is a list of any kind, or a page of it.
type list[T any] struct {
	api.Page
	Reaches *api.Reaches `json:"reaches,omitempty"` // of connections
	Items   []T          `json:"items"`
}

// pages reads a list page by page, up to max items.
func pages[T any](ctx context.Context, c *Client, path string, query url.Values, max int) (list[T], error) {
	items := []T{}
	left := int64(maxList)
	for n := 1; ; n++ {
		limit := api.MaxLimit
		if max != All {
			limit = min(limit, max-len(items))
		}
		query.Set("limit", strconv.Itoa(limit))
		var page list[T]
		read, err := c.read(ctx, http.MethodGet, api.Prefix+path, query, nil, &page, min(maxAnswer, left))
		if err != nil {
			return list[T]{}, err
		}
		if len(page.Items) > limit {
			return list[T]{}, &UnreachableError{Address: c.address, Err: fmt.Errorf("page %d of list %s has %d items: %d were requested", n, path, len(page.Items), limit)}
		}
		left -= read
		items = append(items, page.Items...)
		if page.Continue == "" || max != All && len(items) >= max {
			page.Items = items
			return page, nil
		}
		if n == maxPages || len(page.Items) == 0 {
			return list[T]{}, &UnreachableError{Address: c.address, Err: fmt.Errorf("list %s has no end: page %d has %d items and is not the last", path, n, len(page.Items))}
		}
		query.Set("continue", page.Continue)
	}
}

// setDuration sets a duration parameter, unless it is 0.
func setDuration(v url.Values, name string, d time.Duration) {
	if d != 0 {
		v.Set(name, d.String())
	}
}

// values makes a query of names and values, and leaves out empty ones.
func values(pairs ...string) url.Values {
	v := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			v.Set(pairs[i], pairs[i+1])
		}
	}
	return v
}
