package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
)

func TestRoundStartsOnlyOnRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		v := NewView(nil)
		defer v.Close()
		rounds := 0
		took := time.Second
		question := func() int {
			n, err := ask(t.Context(), v, "q", minFresh, func(context.Context) (int, error) {
				rounds++
				n := rounds
				time.Sleep(took)
				return n, nil
			})
			g.Expect(err).NotTo(HaveOccurred())
			return n
		}
		g.Expect(question()).To(Equal(1), "the first request waits for its round")
		time.Sleep(3900 * time.Millisecond)
		g.Expect(question()).To(Equal(1))
		g.Expect(rounds).To(Equal(1), "rounds run for at most a fifth of the time")
		time.Sleep(200 * time.Millisecond)
		g.Expect(question()).To(Equal(1), "a request does not wait if there is a recent answer")
		synctest.Wait()
		g.Expect(rounds).To(Equal(2))
		time.Sleep(took + time.Millisecond)
		g.Expect(question()).To(Equal(2))
		time.Sleep(time.Hour)
		g.Expect(rounds).To(Equal(2), "no request has arrived")
		g.Expect(question()).To(Equal(3), "an old answer is not used")
	})
}

func TestRequestsAndBackoffAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		v := NewView(nil)
		one := func(key string, round func(context.Context) (int, error)) error {
			_, err := ask(t.Context(), v, key, minFresh, round)
			return err
		}
		at := func(context.Context) (int, error) { return 1, nil }
		for i := range 100 {
			g.Expect(one(fmt.Sprint(i), at)).To(Succeed())
			time.Sleep(time.Millisecond)
		}
		g.Expect(v.questions).To(HaveLen(maxQuestions))
		g.Expect(v.questions).To(HaveKey("99"))

		hang := func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, ctx.Err() }
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for i := range maxQuestions {
			_, err := ask(soon, v, fmt.Sprint("hangs", i), minFresh, hang)
			g.Expect(err).To(MatchError(context.DeadlineExceeded))
		}
		g.Expect(one("one more", at)).To(MatchError(ContainSubstring("too many concurrent requests")))

		lost := errors.New("lost")
		for _, wait := range []time.Duration{5, 10, 20, 40, 60, 60} {
			v.note("a", lost)
			time.Sleep(wait*time.Second - time.Millisecond)
			g.Expect(v.away("a")).To(MatchError(lost))
			time.Sleep(2 * time.Millisecond)
			g.Expect(v.away("a")).To(Succeed())
		}
		v.note("a", &api.Error{Code: 404})
		v.note("a", lost)
		time.Sleep(5*time.Second + time.Millisecond)
		g.Expect(v.away("a")).To(Succeed(), "the response reset the backoff")

		v.Close() // also waits for the requests that hang
		g.Expect(one("closed", at)).To(MatchError(context.Canceled))
	})
}

// many stands for one usher instance for each client. The Host header of a request names the node.
type many struct {
	services       map[string][]byte // answers to /services, by node
	detail         map[string][]byte // answers to /services/shop/web; key "" is for all other nodes
	details        atomic.Int64      // number of requests
	now, mostAtOne atomic.Int64
}

func (m *many) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := m.now.Add(1)
	defer m.now.Add(-1)
	for most := m.mostAtOne.Load(); now > most && !m.mostAtOne.CompareAndSwap(most, now); most = m.mostAtOne.Load() {
	}
	node, _, _ := net.SplitHostPort(r.Host)
	answer := func(by map[string][]byte) {
		if by[node] == nil {
			node = ""
		}
		_, _ = w.Write(by[node]) // the client may have given up
	}
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case "/api/v1/status":
		fmt.Fprint(w, `{"problems":[{"object":"Service shop/","reason":"rejected","message":"no name"},{"object":"Service shop/web","reason":"degraded","message":"1 of 5000 endpoints"}],"services":20000}`)
	case "/api/v1/services":
		for _, name := range r.URL.Query()["service"] {
			if strings.HasSuffix(name, "/") {
				w.WriteHeader(http.StatusBadRequest)
				fmt.Fprint(w, `{"code":400,"message":"service: invalid value"}`)
				return
			}
		}
		answer(m.services)
	default:
		m.details.Add(1)
		answer(m.detail)
	}
}

// encode returns v as the API of usher writes it.
func encode(g Gomega, v any) []byte {
	text, err := json.Marshal(v)
	g.Expect(err).NotTo(HaveOccurred())
	return text
}

func TestServiceOf500NodesAnd5000Endpoints(t *testing.T) {
	g := NewWithT(t)
	const nodes, endpoints, bad = 500, 5000, "node-250"
	list := func(failed, connections int64) []byte {
		return encode(g, api.ServiceList{Page: api.Page{Total: 20000}, Items: []api.Service{{Namespace: "shop", Name: "web", State: api.ServiceDegraded,
			Endpoints: api.EndpointCounts{Total: endpoints, Quarantined: 1}, Totals: api.Totals{AttemptsFailed: failed, Established: connections}}}})
	}
	detail := func(dead func(i int) bool) []byte {
		list := make([]string, endpoints)
		for i := range list {
			is := `"state":"ready","latency":{"clients":10,"connectP99Ms":1.5}`
			if dead(i) {
				is = `"state":"quarantined","failedRecently":3,"quarantine":{"cause":"connection refused"}`
			}
			list[i] = fmt.Sprintf(`{"address":"10.1.%d.%d:8080","pod":"shop/web-%d",%s}`, i/250, i%250, i, is)
		}
		return []byte(`{"details":[{"endpoints":[` + strings.Join(list, ",") + `]}]}`)
	}
	m := &many{
		services: map[string][]byte{"": list(1, 10), bad: list(1000, 0)},
		detail:   map[string][]byte{"": detail(func(i int) bool { return i == 4711 }), bad: detail(func(int) bool { return true })},
	}
	server := httptest.NewServer(m)
	defer server.Close()
	const timeout = 10 * time.Minute // for a slow machine
	var all []Node
	for i := range nodes {
		name := fmt.Sprintf("node-%d", i)
		c, err := client.NewWithDial(name+":1", func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", server.Listener.Addr().String())
		})
		g.Expect(err).NotTo(HaveOccurred())
		defer c.Close()
		c.Timeout = timeout
		all = append(all, Node{name, c})
	}
	v := NewView(func(context.Context) ([]Node, error) { return all, nil })
	v.timeout = timeout
	defer v.Close()

	services, err := v.Services(t.Context(), "")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(services.Total).To(Equal(20000))
	g.Expect(services.Items).To(HaveLen(1))
	g.Expect(services.Items[0].NodeCount).To(Equal(nodes))
	g.Expect(services.Items[0].FailingOn).To(Equal(nodes))
	g.Expect(services.Items[0].Totals.AttemptsFailed).To(BeEquivalentTo(1499))
	g.Expect(services.Items[0].Message).To(Equal("1 of 5000 endpoints"))

	before := heap()
	service, err := v.Service(t.Context(), "shop", "web")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(service.NodesUnasked).To(Equal(450))
	g.Expect(m.details.Load()).To(BeEquivalentTo(50), "details are requested only from the nodes that are shown")
	g.Expect(m.mostAtOne.Load()).To(BeNumerically("<=", maxAtOnce))
	g.Expect(service.Nodes).To(HaveLen(maxColumns))
	g.Expect(service.Endpoints).To(HaveLen(maxEndpoints))
	g.Expect(service.EndpointsOmitted).To(Equal(endpoints - maxEndpoints))
	g.Expect(service.Findings).To(HaveLen(2))
	g.Expect(service.Findings[0].Text).To(HavePrefix("The cause is node node-250: all 5000 endpoints fail from there"))
	g.Expect(service.Findings[1].Text).To(HavePrefix("The cause is the Pod web-4711 ("))
	g.Expect(service.Nodes[0].Name).To(Equal(bad))
	g.Expect(service.Endpoints[0].Pod).To(Equal("shop/web-4711"))
	g.Expect(service.Endpoints[0].Cells).To(HaveLen(maxColumns))
	g.Expect(service.Endpoints[0].Cells[0]).To(Equal(api.ClusterCell{State: api.EndpointQuarantined, Result: api.ResultBad, Tried: 3, Failed: 3, Cause: "connection refused"}))
	g.Expect(heap()-before).To(BeNumerically("<", 16<<20), "bytes of retained memory")
}

// heap returns the number of bytes in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestUnreachableNodeIsListedWithItsError(t *testing.T) {
	g := NewWithT(t)
	m := &many{services: map[string][]byte{"": encode(g, api.ServiceList{Items: []api.Service{}})}}
	server := httptest.NewServer(m)
	defer server.Close()
	there, err := client.New(server.Listener.Addr().String())
	g.Expect(err).NotTo(HaveOccurred())
	defer there.Close()
	gone, err := client.NewWithDial("gone:1", func(context.Context, string) (net.Conn, error) {
		return nil, errors.New("the Pod is gone")
	})
	g.Expect(err).NotTo(HaveOccurred())
	v := NewView(func(context.Context) ([]Node, error) { return []Node{{"a", there}, {"b", gone}}, nil })
	defer v.Close()
	list, err := v.Nodes(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(list.Items).To(HaveLen(2))
	g.Expect(list.Items[0].Error).To(BeEmpty())
	g.Expect(list.Items[1].Error).To(Equal("the Pod is gone"))
	_, err = v.Services(t.Context(), "web")
	g.Expect(err).NotTo(HaveOccurred())
	_, err = v.Service(t.Context(), "shop", "web")
	g.Expect(err).To(MatchError("no usher instance serves a Service shop/web"))

	alone := NewView(func(context.Context) ([]Node, error) { return []Node{{"b", gone}}, nil })
	defer alone.Close()
	_, err = alone.Services(t.Context(), "")
	g.Expect(err).To(MatchError(errNobody))
	_, err = alone.Service(t.Context(), "shop", "web")
	g.Expect(err).To(MatchError(errNobody))
}

func TestCellsAreBounded(t *testing.T) {
	g := NewWithT(t)
	grid := &grid{cells: make([][]api.ClusterCell, 2), index: map[string]int{}, most: 3}
	answer := func(first, count int) (d api.ServiceDetail) {
		var list []api.Endpoint
		for i := range count {
			list = append(list, api.Endpoint{Address: fmt.Sprint(first + i), State: api.EndpointReady})
		}
		d.Details = []api.ServicePort{{Endpoints: list}}
		return d
	}
	grid.add(0, answer(0, 2))
	grid.add(1, answer(1, 7))
	g.Expect(grid.rows).To(HaveLen(3))
	g.Expect(grid.cells[1]).To(HaveLen(3))
	g.Expect(grid.omitted).To(Equal(5))
}
