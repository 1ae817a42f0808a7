package view

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/internal/fleet"
	"github.com/usherproxy/usher/cmd/internal/show"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
)

func TestView(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "view")
}

// since is in another time zone than the local one.
var since = time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 11*3600+17*60))

var _ = DescribeTable("get prints why Services may be missing", func(reason string, said OmegaMatcher, args ...string) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case api.Prefix + "/status":
			_ = json.NewEncoder(w).Encode(api.Status{Problems: []api.StatusProblem{{Object: "usher", Reason: reason, Message: "list services: 403", Since: since}}})
		case api.Prefix + "/services":
			_ = json.NewEncoder(w).Encode(api.ServiceList{})
		default:
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(api.Error{Code: http.StatusNotFound, Message: "no such Service"})
		}
	}))
	DeferCleanup(server.Close)
	root, errs := &cobra.Command{Use: "usher"}, gbytes.NewBuffer()
	cli.SetUp(root)
	root.AddCommand(Viewers{}.Commands()...)
	root.SetErr(errs)
	root.SetOut(GinkgoWriter)
	cli.Execute(context.Background(), root, append(args, "--admin-address="+server.Listener.Addr().String()))
	Expect(string(errs.Contents())).To(said)
},
	Entry("for all Services", "NotServing", Equal("No Services.\nusher: since "+since.Local().Format(time.DateTime)+" list services: 403\n"), "get", "services", "-A"),
	Entry("for an unknown Service", "NotServing", ContainSubstring("usher: since "+since.Local().Format(time.DateTime)+" list services: 403\n"), "get", "services", "web"),
	Entry("for endpoints", "APIServerFailed", Equal("No endpoints.\nusher: since "+since.Local().Format(time.DateTime)+" list services: 403\n"), "get", "endpoints", "-A"),
	Entry("for endpoints of Services in a state", "APIServerFailed", HavePrefix("No endpoints in state no-local-endpoints.\n"), "get", "endpoints", "-A", "--state=no-local-endpoints"),
	Entry("for a portal that is not updated", "PortalFailed", Equal("No Services.\nusher: since "+since.Local().Format(time.DateTime)+" list services: 403\n"), "get", "services", "-A"),
	Entry("once for all kinds", "APIServerFailed", HavePrefix("No Services.\nusher: since "+since.Local().Format(time.DateTime)+" list services: 403\nNo endpoints.\nusher: no such Service"), "get", "all", "-A"),
	Entry("but not for an unrelated problem", "ClockSkew", Equal("No Services.\n"), "get", "services", "-A"),
)

var _ = DescribeTable("a node whose clock differs by an hour", func(shows string, args ...string) {
	now := time.Now().Add(time.Hour)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case api.Prefix + "/status":
			_ = json.NewEncoder(w).Encode(api.Status{Now: now})
		case api.Prefix + "/connections":
			_ = json.NewEncoder(w).Encode(api.ConnectionList{Reaches: &api.Reaches{All: now.Add(-90 * time.Second), Amiss: now.Add(-90 * time.Second)}})
		case api.Prefix + "/events":
			w.Header().Set("Content-Type", "text/event-stream")
			for _, e := range []api.Event{{Text: "old", Time: now.Add(-10 * time.Minute)}, {Text: "new", Time: now.Add(-time.Minute)}} {
				text, _ := json.Marshal(e)
				_, _ = w.Write([]byte("event: " + api.StreamMissed + "\ndata: {\"missed\":7}\n\nevent: " + api.StreamStep + "\ndata: " + string(text) + "\n\n"))
			}
		}
	}))
	DeferCleanup(server.Close)
	root, out := &cobra.Command{Use: "usher"}, gbytes.NewBuffer()
	cli.SetUp(root)
	root.AddCommand(Viewers{}.Commands()...)
	root.SetErr(out)
	root.SetOut(out)
	cli.Execute(context.Background(), root, append(args, "--admin-address="+server.Listener.Addr().String()))
	Expect(string(out.Contents())).To(MatchRegexp(shows))
},
	Entry("has connections of its last minutes", `Includes connections that ended in the last 1m3[01]s\.`, "get", "connections", "--state=ended"),
	Entry("has steps of its last minutes, and has missed none that are older", `^\S+ .*new\S*\n$`, "trace", "--since=5m", "--follow=false"),
)

var _ = Describe("get -w of a cluster", func() {
	// instance returns the usher instance of a node with the Services that list returns. It does not answer while these
	// are nil.
	instance := func(node string, list func() []api.Service) fleet.Usher {
		GinkgoHelper()
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			services := list()
			if services == nil {
				panic(http.ErrAbortHandler)
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(api.ServiceList{Items: services})
		}))
		DeferCleanup(server.Close)
		c, err := client.New(server.Listener.Addr().String())
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(c.Close)
		return fleet.Usher{Node: node, Pod: "kube-system/usher", Client: c}
	}
	service := func(name string) []api.Service {
		return []api.Service{{Namespace: "shop", Name: name, State: api.ServiceOK}}
	}
	// run runs the command until end is called.
	run := func(ctx context.Context, f *getFlags, ushers ...fleet.Usher) (out, errs *gbytes.Buffer, end func()) {
		out, errs = gbytes.NewBuffer(), gbytes.NewBuffer()
		cmd := &cobra.Command{}
		cmd.SetOut(out)
		cmd.SetErr(errs)
		ctx, cancel := context.WithCancel(ctx)
		cmd.SetContext(ctx)
		f.all, f.watch = true, true
		f.asks.newFleet = func(fleet.Options) (fleet.Finder, error) { return nil, errors.New("no cluster") }
		ended := make(chan error)
		go func() {
			defer GinkgoRecover()
			defer close(ended)
			ended <- watch(cmd, f, f.serviceKind(&client.ServiceQuery{}), ushers, nil)
		}()
		return out, errs, func() {
			GinkgoHelper()
			cancel()
			Eventually(ended).Should(Receive(BeNil()))
		}
	}

	It("shows other nodes' Services while a node is unreachable, and its Services once it answers", func(ctx context.Context) {
		var answers atomic.Bool
		a := instance("a", func() []api.Service { return service("web") })
		b := instance("b", func() []api.Service {
			if answers.Load() {
				return service("cart")
			}
			return nil
		})
		out, errs, end := run(ctx, &getFlags{output: "name"}, a, b)
		Eventually(errs).Should(gbytes.Say("node b: .*; retrying\n"))
		Eventually(out).Should(gbytes.Say("^service/shop/web\n"))
		answers.Store(true)
		Eventually(out, "30s").Should(gbytes.Say("^service/shop/cart\n"), "and web is not printed again")
		end()
	})

	It("prints an object again that was gone while another node was unreachable", func(ctx context.Context) {
		var rounds atomic.Int32
		a := instance("a", func() []api.Service {
			if rounds.Add(1) == 2 {
				return []api.Service{}
			}
			return service("web")
		})
		out, _, end := run(ctx, &getFlags{apart: true}, a, instance("b", func() []api.Service { return nil }))
		Eventually(out, "30s").Should(gbytes.Say(" web +ok"))
		Eventually(out, "30s").Should(gbytes.Say(" web +ok"))
		Expect(strings.Count(string(out.Contents()), "NAMESPACE")).To(Equal(1), "the columns are the same")
		end()
	})

	It("does not count another failed probe as a change of an endpoint, but another cause", func() {
		news := func(cause string) string {
			return (&getFlags{}).endpointKind(&client.ServiceQuery{}).news(show.PortEndpoint{Endpoint: api.Endpoint{State: api.EndpointQuarantined, Quarantine: &api.Quarantine{Cause: cause}}})
		}
		Expect(news("10 probes failed: HTTP status 503")).To(Equal(news("9 probes failed: HTTP status 503")))
		Expect(news("10 probes failed: connection refused")).NotTo(Equal(news("10 probes failed: HTTP status 503")))
	})

	It("forgets the endpoints of Services that are gone", func(ctx context.Context) {
		known := map[string]knownEndpoints{"shop/gone": {}, "shop/web": {of: service("web")[0], asked: time.Now().Add(time.Hour)}}
		a := instance("a", func() []api.Service { return service("web") })
		_, err := (&getFlags{all: true}).endpoints(ctx, a.Client, client.ServiceQuery{}, nil, known)
		Expect(err).NotTo(HaveOccurred())
		Expect(known).To(And(HaveLen(1), HaveKey("shop/web")))
	})

	It("omits connections that ended before it started, also of nodes that answer later", func() {
		q := client.ConnectionQuery{}
		past := (&getFlags{}).connectionKind(&q, &reach{}).past
		began := time.Now()
		ended := api.Connection{End: "endpoint-closed", Accepted: began.Add(-2 * time.Second), DurationMs: 1000}
		late := api.Connection{End: "endpoint-closed", Accepted: began.Add(-2 * time.Second), DurationMs: 3000}
		Expect(past(ended, began)).To(BeTrue())
		Expect(past(late, began)).To(BeFalse(), "it was open then")
		Expect(past(late, time.Time{})).To(BeTrue())
		Expect(past(api.Connection{}, time.Time{})).To(BeFalse(), "it is open")
		for _, q = range []client.ConnectionQuery{{State: "all"}, {Last: time.Minute}, {End: "endpoint-closed"}} {
			Expect(past(ended, began)).To(BeFalse(), "ended connections were requested")
		}
	})
})

var _ = DescribeTable("the column NAMESPACE", func(f *getFlags, shown bool, namespaces ...string) {
	k := f.serviceKind(&client.ServiceQuery{})
	var items []fleet.Reported[api.Service]
	for _, n := range namespaces {
		items = append(items, fleet.Reported[api.Service]{Item: api.Service{Namespace: n, Name: "web"}})
	}
	Expect(k.columnsFor(f, items)).To(HaveLen(len(k.columns) - map[bool]int{false: 1}[shown]))
},
	Entry("is omitted if all have the selected one", &getFlags{NamespaceFlag: NamespaceFlag{Namespace: "shop"}}, false, "shop", "shop"),
	Entry("is shown with -A", &getFlags{all: true}, true, "shop"),
	Entry("is shown if an item has another one", &getFlags{NamespaceFlag: NamespaceFlag{Namespace: "shop"}}, true, "shop", "test"),
)

var _ = DescribeTable("--endpoint without a namespace", func(name, service, is string) {
	f := NamespaceFlag{Namespace: "shop"}
	Expect(f.EndpointName(name, strings.Fields(service))).To(Equal(is))
},
	Entry("names a Pod of --namespace", "web-1", "", "shop/web-1"),
	Entry("names a Pod of the Service's namespace", "web-1", "other/web", "other/web-1"),
	Entry("names a Pod of --namespace, as the Service", "web-1", "web", "shop/web-1"),
	Entry("may be a Pod with a namespace", "other/web-1", "web", "other/web-1"),
	Entry("may be an IPv4 address", "10.1.2.3", "web", "10.1.2.3"),
	Entry("may be an IPv6 address", "fd00::1", "web", "fd00::1"),
	Entry("may be an address and port", "10.1.2.3:80", "web", "10.1.2.3:80"),
	Entry("may be empty", "", "web", ""),
)

var _ = DescribeTable("diagnose checks the node itself only if usher runs on this machine", func(ctx context.Context, address string, here bool) {
	Expect(isHere(ctx, address)).To(Equal(here))
},
	Entry(nil, "127.0.0.1:10249", true),
	Entry(nil, ":10249", true),
	Entry(nil, "[::1]:10249", true),
	Entry(nil, "203.0.113.7:10249", false),
	Entry(nil, "[2001:db8::7]:10249", false),
	Entry("a name that cannot be resolved", "usher.invalid:10249", true),
)
