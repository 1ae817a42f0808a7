package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/cmd/internal/show"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
)

func TestFleet(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "fleet")
}

var _ = Describe("a Service's data from several nodes", func() {
	service := func(node, name string, state api.ServiceState, accepted int64, l *api.Latency) Reported[api.Service] {
		return Reported[api.Service]{Node: node, Item: api.Service{Namespace: "shop", Name: name, State: state,
			Totals: api.Totals{Accepted: accepted, Failed: 1}, Ends: map[string]int64{"closed": accepted}, Latency: l}}
	}

	It("is merged: the worst state with its nodes, sums, and the longest latency", func() {
		list := []Reported[api.Service]{
			service("a", "web", api.ServiceOK, 10, &api.Latency{Clients: 9, ConnectP50Ms: 1, ConnectP99Ms: 7, FirstByteP99Ms: 2}),
			service("a", "cart", api.ServiceOK, 1, nil),
			service("b", "web", api.ServiceDegraded, 20, nil),
			service("c", "web", api.ServiceDegraded, 30, &api.Latency{Clients: 5, ConnectP50Ms: 2, ConnectP99Ms: 3, FirstByteP99Ms: 9}),
		}
		all := Services(list)
		Expect(all).To(HaveLen(2))
		web := all[0]
		Expect(web.Item.State).To(Equal(api.ServiceDegraded))
		Expect(web.Item.Totals).To(Equal(api.Totals{Accepted: 60, Failed: 3}))
		Expect(web.Item.Ends).To(Equal(map[string]int64{"closed": 60}))
		Expect(list[0].Item.Ends).To(Equal(map[string]int64{"closed": 10}), "the node's data is unchanged")
		Expect(*web.Item.Latency).To(Equal(api.Latency{Clients: 14, ConnectP50Ms: 2, ConnectP99Ms: 7, FirstByteP99Ms: 9}))
		Expect(web.Worst()).To(Equal([]string{"b", "c"}))
		Expect(web.Nodes).To(HaveExactElements(
			OnNode{Node: "b", State: "degraded", Connections: 20, Failed: 1},
			OnNode{Node: "c", State: "degraded", Connections: 30, Failed: 1},
			OnNode{Node: "a", State: "ok", Connections: 10, Failed: 1}))
		Expect(all[1].Worst()).To(BeEmpty(), "all nodes with the Service report this state")
		some := all[1]
		some.Others = 9
		Expect(some.Worst()).NotTo(BeEmpty(), "other nodes report another state")

		list = append(list, service("d", "web", "new", 1, nil))
		Expect(Services(list)[0].Item.State).To(BeEquivalentTo("new"), "an unknown state of a later version may be bad")
	})

	It("leaves out what differs between nodes, and has the endpoints of the node with the fewest ready ones", func() {
		port := func(node, listener, source, zone string, ready int) Reported[api.Service] {
			s := service(node, "web", api.ServiceOK, 1, nil)
			s.Item.Ports = []api.PortSummary{{Name: "http", Listener: listener, Sees: api.Sees{Source: source}, Topology: &api.Topology{Key: "zone", Value: zone}, Settings: map[string]string{"scheduler": zone, "slow-start": "1m"},
				ProxyProtocol: &api.ProxyProtocol{ToEndpoints: zone}}}
			s.Item.Endpoints = api.EndpointCounts{Total: 3, Ready: ready}
			return s
		}
		list := []Reported[api.Service]{port("a", "127.0.0.1:1", "client", "x", 3), port("b", "127.0.0.1:2", "node", "y", 2), port("c", "127.0.0.1:1", "client", "x", 3)}
		all := Services(list)
		Expect(all[0].Item.Ports).To(Equal([]api.PortSummary{{Name: "http", Settings: map[string]string{"slow-start": "1m"}}}))
		Expect(all[0].Item.Endpoints.Ready).To(Equal(2))
		Expect(list[0].Item.Ports[0].Listener).To(Equal("127.0.0.1:1"), "the node's data is unchanged")
		Expect(Services([]Reported[api.Service]{list[0], list[2]})[0].Item.Ports).To(Equal(list[0].Item.Ports))
	})

	It("is shown as a table with nodes after the state, or with one node per row", func() {
		list := []Reported[api.Service]{service("a", "web", api.ServiceOK, 1, nil), service("b", "web", api.ServiceDown, 2, nil)}
		rows := Services(list)
		columns := show.Shown(Columns(show.Services, true), rows, false)
		Expect(show.Lines(columns, rows)[1]).To(MatchRegexp(`^shop +web +down on 1 of 2 +b +`))
		columns = show.Shown(Columns(show.Services, false), list, false)
		Expect(show.Lines(columns, list)[2]).To(MatchRegexp(`^b +shop +web +down +`))
		rows = Services(list[:1])
		Expect(show.Lines(show.Shown(Columns(show.Services, true), rows, false), rows)[0]).NotTo(ContainSubstring("NODE"), "all nodes agree")
	})

	It("is sorted by the sums", func() {
		a, b := service("", "a", api.ServiceOK, 1, nil).Item, service("", "b", api.ServiceOK, 5, nil).Item
		Expect(CompareServices("", a, b)).To(BeNumerically("<", 0))
		Expect(CompareServices(api.SortConnections, a, b)).To(BeNumerically(">", 0))
		Expect(CompareServices(api.SortFailed, a, b)).To(BeNumerically("<", 0), "equal numbers: by name")
	})
})

var _ = Describe("an endpoint's data from several nodes", func() {
	It("is merged by port, protocol and address, with the quarantine of any node", func() {
		endpoint := func(node, port string, state api.EndpointState, q *api.Quarantine) Reported[show.PortEndpoint] {
			return Reported[show.PortEndpoint]{Node: node, Item: show.PortEndpoint{Namespace: "shop", Service: "web", Port: port, Protocol: "TCP",
				Endpoint: api.Endpoint{Address: "10.0.0.1:80", Node: "pods-node", State: state, Quarantine: q, Active: 1, Connected: 4, Failed: 2, WaitingLong: 3}}}
		}
		refused := &api.Quarantine{Cause: "connection refused"}
		all := Endpoints([]Reported[show.PortEndpoint]{endpoint("a", "http", api.EndpointReady, nil), endpoint("a", "admin", api.EndpointNotReady, nil),
			endpoint("b", "http", api.EndpointQuarantined, refused), endpoint("b", "admin", api.EndpointNotReady, nil)})
		Expect(all).To(HaveLen(2))
		Expect(all[0].Item.Quarantine).To(Equal(refused))
		Expect(all[0].Worst()).To(Equal([]string{"b"}))
		Expect([]int64{all[0].Item.Active, all[0].Item.Connected, all[0].Item.Failed, all[0].Item.WaitingLong}).To(Equal([]int64{2, 8, 4, 6}))
		Expect(all[1].Worst()).To(BeEmpty())

		var fields map[string]any
		text, err := json.Marshal(all[0])
		Expect(err).NotTo(HaveOccurred())
		Expect(json.Unmarshal(text, &fields)).To(Succeed())
		Expect(fields).To(And(HaveKeyWithValue("node", "pods-node"), HaveKeyWithValue("nodes", HaveLen(2)), HaveKeyWithValue("state", "quarantined")))
		text, err = json.Marshal(endpoint("a", "http", api.EndpointReady, nil))
		Expect(err).NotTo(HaveOccurred())
		Expect(text).To(ContainSubstring(`{"usherNode":"a","namespace":"shop"`))
	})
})

var _ = DescribeTable("an endpoint that only some nodes use", func(usedFor []string, notUsed string, nodes ...api.Endpoint) {
	var list []Reported[show.PortEndpoint]
	for _, e := range nodes {
		list = append(list, Reported[show.PortEndpoint]{Node: "a", Item: show.PortEndpoint{Endpoint: e}})
	}
	all := Endpoints(list)
	Expect(all).To(HaveLen(1))
	Expect(all[0].Item.UsedFor).To(Equal(usedFor))
	Expect(all[0].Item.NotUsed).To(Equal(notUsed))
},
	Entry("is used", []string{"node", "internal"}, "",
		api.Endpoint{UsedFor: []string{"node"}, NotUsed: "for internal: it is on another node"}, api.Endpoint{UsedFor: []string{"internal", "node"}},
		api.Endpoint{UsedFor: []string{"node"}, NotUsed: "for internal: it is on another node"}),
	Entry("not even by one node, for one reason", []string{}, "weight 0", api.Endpoint{UsedFor: []string{}, NotUsed: "weight 0"}, api.Endpoint{UsedFor: []string{}, NotUsed: "weight 0"}),
	Entry("not even by one node, for several reasons", []string{}, "differs by node", api.Endpoint{UsedFor: []string{}, NotUsed: "zone a"}, api.Endpoint{UsedFor: []string{}, NotUsed: "zone b"}),
)

var _ = Describe("a connection of a node", func() {
	It("has its node in JSON, and no such field without a cluster", func() {
		Expect(json.Marshal(Reported[api.Missed]{Node: "a", Item: api.Missed{Missed: 3}})).To(BeEquivalentTo(`{"node":"a","missed":3}`))
		Expect(json.Marshal(Reported[api.Missed]{Item: api.Missed{Missed: 3}})).To(BeEquivalentTo(`{"missed":3}`))
	})

	It("is sorted as usher sorts its connections", func() {
		now := time.Now()
		old := api.Connection{Accepted: now, DurationMs: 5, ConnectMs: 1, FirstByteMs: 4, Protocol: "TCP"}
		young := api.Connection{Accepted: now.Add(time.Second), DurationMs: 3, Protocol: "TCP"} // not connected yet
		Expect(CompareConnections("", old, young)).To(BeNumerically(">", 0))
		Expect(CompareConnections(api.SortDuration, old, young)).To(BeNumerically("<", 0))
		Expect(CompareConnections(api.SortConnect, old, young)).To(BeNumerically(">", 0))
		Expect(CompareConnections(api.SortFirstByte, old, young)).To(BeNumerically("<", 0))
	})
})

var _ = Describe("Ask", func() {
	ushers := func(n int) (list []Usher) {
		for i := range n {
			list = append(list, Usher{Node: fmt.Sprint("n", i), Pod: "kube-system/usher"})
		}
		return list
	}

	It("queries all instances with limited concurrency, and keeps their order", func() {
		var now, most atomic.Int64
		release := make(chan struct{})
		answers := make(chan []Answer[string])
		go func() {
			answers <- Ask(context.Background(), ushers(500), func(_ context.Context, u Usher) (string, error) {
				n := now.Add(1)
				defer now.Add(-1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				<-release
				return u.Node, nil
			})
		}()
		Eventually(now.Load).Should(BeEquivalentTo(AtOnce))
		close(release)
		for i, a := range <-answers {
			Expect(a.Value).To(Equal(fmt.Sprint("n", i)))
		}
		Expect(most.Load()).To(BeEquivalentTo(AtOnce))
	})

	answered := func(errs ...error) ([]Answer[int], error) {
		list := ushers(len(errs))
		var answers []Answer[int]
		for i, err := range errs {
			answers = append(answers, Answer[int]{From: list[i], Err: err})
		}
		return Answered(answers)
	}
	refused := &client.UnreachableError{Address: "127.0.0.1:10249", Err: errors.New("connection refused")}

	It("lists nodes that do not answer by error, and returns the other answers", func() {
		good, err := answered(nil, refused, errors.New("too old"), refused, nil)
		Expect(good).To(HaveLen(2))
		Expect(IsSilent(err)).To(BeTrue())
		Expect(err).To(MatchError("nodes n1, n3: cannot connect to usher: connection refused\nnode n2: too old"))
	})

	It("fails if no node answers", func() {
		good, err := answered(refused, refused)
		Expect(good).To(BeEmpty())
		Expect(IsSilent(err)).To(BeFalse())
		Expect(err).To(MatchError("nodes n0, n1: cannot connect to usher: connection refused"))
	})

	It("returns the error of a single instance without a node unchanged", func() {
		_, err := Answered([]Answer[int]{{Err: refused}})
		Expect(err).To(BeIdenticalTo(refused))
		good, err := Answered([]Answer[int]{{Err: refused}, {From: ushers(1)[0]}})
		Expect(good).To(HaveLen(1), "there is another instance")
		Expect(IsSilent(err)).To(BeTrue())
	})
})
