package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
)

func TestClient(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "client")
}

// serve starts a server with this handler, and returns a client for it.
func serve(handler http.HandlerFunc) *client.Client {
	GinkgoHelper()
	server := httptest.NewServer(handler)
	DeferCleanup(server.Close)
	return newClient(server.Listener.Addr().String())
}

func newClient(address string) *client.Client {
	GinkgoHelper()
	c, err := client.New(address)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(c.Close)
	return c
}

// answer writes v in the same form as usher.
func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

var _ = Describe("an address", func() {
	It("defaults to loopback if it has no host", func() {
		Expect(newClient(":10249").Address()).To(Equal("127.0.0.1:10249"))
		Expect(newClient("[::1]:10249").Address()).To(Equal("[::1]:10249"))
	})

	DescribeTable("is rejected if invalid, and the error names the valid form", func(address, text string) {
		_, err := client.New(address)
		Expect(err).To(MatchError(ContainSubstring(text)))
	},
		Entry(nil, "localhost", `"localhost" is not host:port`),
		Entry(nil, "http://127.0.0.1:10249", "is not host:port"),
		Entry(nil, "127.0.0.1:", `"" is not a port from 1 to 65535`),
		Entry(nil, "127.0.0.1:70000", `"70000" is not a port from 1 to 65535`),
	)
})

var _ = Describe("a slow request", func() {
	It("reports after one second that usher has not responded", func() {
		release := make(chan struct{})
		c := serve(func(w http.ResponseWriter, _ *http.Request) {
			<-release
			answer(w, http.StatusOK, api.Status{})
		})
		reasons := make(chan string, 2)
		c.Slow = func(reason string, most time.Duration) { reasons <- fmt.Sprint(reason, ", ", most) }
		began := time.Now()
		go func() {
			defer GinkgoRecover()
			Expect(<-reasons).To(Equal("usher at " + c.Address() + " accepted the connection but has not responded, 30s"))
			Expect(time.Since(began)).To(BeNumerically(">=", time.Second))
			close(release)
		}()
		_, err := c.Status(context.Background())
		Expect(err).NotTo(HaveOccurred())
	})

	It("reports the caller's deadline if that is shorter, and then an accepted connection without response", func() {
		release := make(chan struct{})
		c := serve(func(http.ResponseWriter, *http.Request) { <-release })
		defer close(release)
		reasons := make(chan string, 2)
		c.Slow = func(reason string, most time.Duration) { reasons <- fmt.Sprint(reason, ", ", most) }
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, err := c.Status(ctx)
		var unreachable *client.UnreachableError
		Expect(errors.As(err, &unreachable)).To(BeTrue())
		Expect(unreachable.Silent).To(BeTrue())
		Eventually(reasons).WithTimeout(30 * time.Second).Should(Receive(MatchRegexp(`has not responded, [1-5](\.\d+)?s$`)))
	})

	It("reports that the connection is not established yet", func() {
		dialing := make(chan struct{})
		c, err := client.NewWithDial("127.0.0.1:1", func(context.Context, string) (net.Conn, error) {
			<-dialing
			return nil, net.ErrClosed
		})
		Expect(err).NotTo(HaveOccurred())
		c.Slow = func(reason string, _ time.Duration) {
			defer GinkgoRecover()
			Expect(reason).To(Equal("the connection to 127.0.0.1:1 is not established yet"))
			close(dialing)
		}
		_, err = c.Status(context.Background())
		Expect(err).To(MatchError(net.ErrClosed))
	})
})

var _ = Describe("a list", func() {
	// five returns a handler that serves five Services in pages, and records the requests in asked.
	five := func(asked *[]string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			*asked = append(*asked, r.URL.RequestURI())
			q := r.URL.Query()
			limit, _ := strconv.Atoi(q.Get("limit"))
			limit = min(limit, 2) // small pages
			from, _ := strconv.Atoi(q.Get("continue"))
			to := min(from+limit, 5)
			list := api.ServiceList{Page: api.Page{Total: 5}, Items: []api.Service{}}
			for i := from; i < to; i++ {
				list.Items = append(list.Items, api.Service{Name: fmt.Sprint(i)})
			}
			if to < 5 {
				list.Continue = strconv.Itoa(to)
			}
			answer(w, http.StatusOK, list)
		}
	}
	names := func(list api.ServiceList) (out []string) {
		for _, s := range list.Items {
			out = append(out, s.Name)
		}
		return out
	}

	It("is read to its last page with the same filters", func(ctx context.Context) {
		var asked []string
		list, err := serve(five(&asked)).Services(ctx, client.ServiceQuery{Namespace: "shop", Text: "a b"})
		Expect(err).NotTo(HaveOccurred())
		Expect(names(list)).To(Equal([]string{"0", "1", "2", "3", "4"}))
		Expect(list.Total).To(Equal(5))
		Expect(asked).To(Equal([]string{
			"/api/v1/services?limit=1000&namespace=shop&q=a+b",
			"/api/v1/services?continue=2&limit=1000&namespace=shop&q=a+b",
			"/api/v1/services?continue=4&limit=1000&namespace=shop&q=a+b",
		}))
	})

	It("is an error if an empty page has a successor or a page is too long", func(ctx context.Context) {
		c := serve(func(w http.ResponseWriter, _ *http.Request) {
			answer(w, http.StatusOK, map[string]any{"items": []any{}, "continue": "x"})
		})
		_, err := c.Services(ctx, client.ServiceQuery{})
		Expect(err).To(MatchError(And(ContainSubstring(c.Address()), ContainSubstring("has no end"))))

		c = serve(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"items": [`)
			blank := bytes.Repeat([]byte(" "), 1<<20)
			for err := error(nil); err == nil; {
				_, err = w.Write(blank)
			}
		})
		c.Timeout = 10 * time.Minute // on a busy machine, 64 MiB take half a minute with the race detector
		_, err = c.Services(ctx, client.ServiceQuery{})
		Expect(err).To(MatchError(And(ContainSubstring(c.Address()), ContainSubstring("more than 67108864 bytes"))))
	})

	It("is an error if a page has more items than requested, or items that are much larger when decoded", func(ctx context.Context) {
		c := serve(func(w http.ResponseWriter, _ *http.Request) {
			answer(w, http.StatusOK, api.ServiceList{Items: make([]api.Service, 3)})
		})
		_, err := c.Services(ctx, client.ServiceQuery{Max: 2})
		Expect(err).To(MatchError(ContainSubstring("page 1 of list /services has 3 items: 2 were requested")))
		for _, item := range []string{"{},", "null,"} {
			c = serve(func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprint(w, `{"items": [`+strings.Repeat(item, 1<<20)+`{}]}`)
			})
			_, err = c.Services(ctx, client.ServiceQuery{})
			Expect(err).To(MatchError(And(ContainSubstring(c.Address()), ContainSubstring("its objects have fewer than 32 bytes on average"))))
		}
	})

	It("is read up to the requested maximum, and has the total", func(ctx context.Context) {
		var asked []string
		list, err := serve(five(&asked)).Services(ctx, client.ServiceQuery{Max: 3})
		Expect(err).NotTo(HaveOccurred())
		Expect(names(list)).To(Equal([]string{"0", "1", "2"}))
		Expect(list.Total).To(Equal(5))
	})
})

var _ = Describe("a Service", func() {
	It("is requested by its escaped name", func(ctx context.Context) {
		var asked []string
		c := serve(func(w http.ResponseWriter, r *http.Request) {
			asked = append(asked, r.URL.EscapedPath(), r.URL.Path)
			answer(w, http.StatusOK, api.ServiceDetail{})
		})
		_, err := c.Service(ctx, "shop", "a/<b>?")
		Expect(err).NotTo(HaveOccurred())
		Expect(asked).To(Equal([]string{"/api/v1/services/shop/a%2F%3Cb%3E%3F", "/api/v1/services/shop/a/<b>?"}))
	})
})

var _ = Describe("an error", func() {
	It("has the message of usher's response", func(ctx context.Context) {
		c := serve(func(w http.ResponseWriter, _ *http.Request) {
			answer(w, http.StatusNotFound, api.Error{Code: http.StatusNotFound, Message: "there is no Service default/wbe"})
		})
		_, err := c.Service(ctx, "default", "wbe")
		Expect(err).To(MatchError("there is no Service default/wbe"))
		Expect(client.IsNotFound(err)).To(BeTrue())
	})

	It("says that the connection was refused if no process listens", func(ctx context.Context) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		Expect(err).NotTo(HaveOccurred())
		address := l.Addr().String()
		Expect(l.Close()).To(Succeed())
		_, err = newClient(address).Status(ctx)
		Expect(err).To(MatchError("cannot connect to usher at " + address + ": connection refused"))
	})

	It("says that another program uses the port", func(ctx context.Context) {
		_, err := serve(http.NotFound).Status(ctx)
		Expect(err).To(BeAssignableToTypeOf(&client.NotUsherError{}))
		Expect(err).To(MatchError(ContainSubstring("does not have usher's API (404 Not Found)")))
	})

	It("prints no control characters of another process", func(ctx context.Context) {
		c := serve(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write([]byte(`{"code": 400, "message": "\u001b[2Jgone\nnode b: fine"}`))
		})
		_, err := c.Status(ctx)
		Expect(err).To(MatchError("\ufffd[2Jgone\ufffdnode b: fine"))
	})

	It("says how long the request waited, for the caller's deadline and the client's timeout", func(ctx context.Context) {
		c := serve(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		soon, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		_, err := c.Status(soon)
		Expect(err).To(MatchError(MatchRegexp(`no response within (1\d\d|200)ms$`)))
		c.Timeout = 100 * time.Millisecond
		_, err = c.Status(ctx)
		Expect(err).To(MatchError(MatchRegexp(`no response within (\d\d|100)ms$`)))
	})

	It("says that usher runs without a demo", func(ctx context.Context) {
		_, err := serve(http.NotFound).Break(ctx, api.DemoBreak{Endpoint: "web-1", How: api.DemoRefuse})
		Expect(err).To(MatchError(client.ErrNoDemo))
	})
})

var _ = Describe("the event stream", func() {
	const stream = "event: hello\ndata: {\"instance\":\"a\",\"heartbeatSeconds\":15}\n\n" +
		": heartbeat\n\n" +
		"id: a-1\nevent: step\ndata: {\"id\":\"a-1\",\"kind\":\"accepted\",\"text\":\"#1\"}\n\n" +
		"event: missed\ndata: {\"missed\":120}\n\n" +
		"event: of-a-later-version\ndata: {}\n\n" +
		": heartbeat\nid: a-7\n\n" +
		"id: a-9\r\nevent: change\r\ndata: {\"id\":\"a-9\",\r\ndata: \"kind\":\"service-added\"}\r\n\r\n"

	// linesOf reads a stream until it ends, and returns its lines.
	linesOf := func(ctx context.Context, c *client.Client, q client.EventQuery) (lines []string, err error) {
		for m, err := range c.Events(ctx, q) {
			switch {
			case err != nil:
				return lines, err
			case m.Hello != nil:
				lines = append(lines, "hello "+m.Hello.Instance)
			case m.Event != nil:
				lines = append(lines, m.Event.ID+" "+m.Event.Kind)
			case m.Missed > 0:
				lines = append(lines, fmt.Sprintf("missed %d", m.Missed))
			default:
				lines = append(lines, "at "+m.ID)
			}
		}
		return lines, nil
	}
	all := []string{"hello a", "a-1 accepted", "missed 120", "at a-7", "a-9 service-added"}

	It("is read event by event, and unknown events are skipped", func(ctx context.Context) {
		var asked string
		c := serve(func(w http.ResponseWriter, r *http.Request) {
			asked = r.URL.RequestURI()
			fmt.Fprint(w, stream)
		})
		lines, err := linesOf(ctx, c, client.EventQuery{Service: "default/web", Outcome: "retry", History: true, Once: true})
		Expect(err).NotTo(HaveOccurred())
		Expect(lines).To(Equal(all))
		Expect(asked).To(Equal("/api/v1/events?follow=false&history=true&outcome=retry&service=default%2Fweb"))
	})

	It("returns an error if it ends while it is followed", func(ctx context.Context) {
		c := serve(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, stream) })
		lines, err := linesOf(ctx, c, client.EventQuery{})
		Expect(err).To(MatchError(client.ErrStreamEnded))
		Expect(lines).To(Equal(all))
	})

	DescribeTable("returns an error if an event or a line is too long", func(ctx context.Context, part string) {
		c := serve(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, stream+"event: step\ndata: ")
			for err := error(nil); err == nil; {
				_, err = fmt.Fprint(w, strings.Repeat(part, 10_000))
			}
		})
		lines, err := linesOf(ctx, c, client.EventQuery{})
		Expect(err).To(MatchError(And(ContainSubstring(c.Address()), ContainSubstring("longer than"))))
		Expect(lines).To(Equal(all))
	}, Entry("a line without an end", "xxxxxxxxxx"), Entry("an event of long lines", "data: xxxxx\n"), Entry("an event of empty lines", ":\n"))

	It("counts as ended if no heartbeat arrives in time", func(ctx context.Context) {
		c := serve(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, strings.Replace(stream, "15", "0.01", 1))
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})
		lines, err := linesOf(ctx, c, client.EventQuery{})
		Expect(err).To(MatchError(client.ErrStreamEnded))
		Expect(slices.Contains(lines, "hello a")).To(BeTrue())
	})

	It("is closed when its reader stops", func(ctx context.Context) {
		gone := make(chan struct{})
		c := serve(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, stream)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			close(gone)
		})
		for range c.Events(ctx, client.EventQuery{}) {
			break
		}
		Eventually(gone).Should(BeClosed())
	})
})
