package kube

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/usherproxy/usher/config"
)

// patience is the timeout of specs: client-go waits up to 2 s before the second try, and longer before later ones.
const patience = time.Minute

// fakeServer serves empty lists and watches over TLS.
type fakeServer struct {
	*httptest.Server
	// fault, if not nil, handles a request first. If it returns false, the server handles the request as usual.
	fault atomic.Pointer[func(w http.ResponseWriter, r *http.Request) bool]
}

func newFakeServer() *fakeServer {
	s := &fakeServer{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fault := s.fault.Load(); fault != nil && (*fault)(w, r) {
			return
		}
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Query().Has("sendInitialEvents"): // like an older API server
			w.WriteHeader(http.StatusUnprocessableEntity)
		case r.URL.Query().Has("watch"):
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			kinds := map[string]string{"/api/v1/services": "ServiceList", "/api/v1/nodes": "NodeList", "/apis/discovery.k8s.io/v1/endpointslices": "EndpointSliceList"}
			version := "v1"
			if kinds[r.URL.Path] == "EndpointSliceList" {
				version = "discovery.k8s.io/v1"
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": version, "kind": kinds[r.URL.Path], "metadata": map[string]any{"resourceVersion": "1"}, "items": []any{}})
		}
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // logs errors of clients that do not trust it
	s.StartTLS()
	DeferCleanup(func() { s.CloseClientConnections(); s.Close() })
	return s
}

// become replaces the fault, and ends existing watches.
func (s *fakeServer) become(fault func(w http.ResponseWriter, r *http.Request) bool) {
	if fault == nil {
		s.fault.Store(nil)
	} else {
		s.fault.Store(&fault)
	}
	s.CloseClientConnections()
}

// refuses returns a fault that answers requests matching is with a status code.
func refuses(code int, is func(r *http.Request) bool) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if is(r) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d}`, code)
			return true
		}
		return false
	}
}

// answers returns a fault that answers requests matching is with 200 and this text.
func answers(kind, text string, is func(r *http.Request) bool) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if is(r) {
			w.Header().Set("Content-Type", kind)
			fmt.Fprint(w, text)
		}
		return is(r)
	}
}

func noList(kind string) string {
	return fmt.Sprintf("is not a Kubernetes API list (Content-Type: %q)", kind)
}

func every(*http.Request) bool      { return true }
func isWatch(r *http.Request) bool  { return r.URL.Query().Has("watch") }
func ofSlices(r *http.Request) bool { return filepath.Base(r.URL.Path) == "endpointslices" }

// kubeconfig returns a file that names the server, with changes.
func (s *fakeServer) kubeconfig(change func(cluster, user map[string]any)) string {
	GinkgoHelper()
	cluster := map[string]any{"server": s.URL, "certificate-authority-data": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})}
	user := map[string]any{"token": "secret"}
	if change != nil {
		change(cluster, user)
	}
	text, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"contexts": []any{map[string]any{"name": "c", "context": map[string]any{"cluster": "c", "user": "u"}}},
		"clusters": []any{map[string]any{"name": "c", "cluster": cluster}}, "users": []any{map[string]any{"name": "u", "user": user}}})
	Expect(err).NotTo(HaveOccurred())
	path := filepath.Join(GinkgoT().TempDir(), "kubeconfig")
	Expect(os.WriteFile(path, text, 0o600)).To(Succeed())
	return path
}

// follow runs a source with that kubeconfig, and returns its Reach. It closes complete on the initial sync.
func follow(kubeconfig string, change ...func(*Options)) (reach *Reach, complete chan struct{}) {
	GinkgoHelper()
	client, reach, err := Connection{Kubeconfig: kubeconfig, UserAgent: "test"}.Connect()
	Expect(err).NotTo(HaveOccurred())
	logger, _ := logtest.NewNullLogger()
	options := Options{Client: client, Metadata: client.Metadata, NodeName: "worker-1", Log: logger}
	for _, c := range change {
		c(&options)
	}
	s, err := New(options)
	Expect(err).NotTo(HaveOccurred())
	complete = make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		first := true
		_ = s.Run(ctx, func([]config.Service) {
			if first {
				close(complete)
			}
			first = false
		})
	}()
	DeferCleanup(func() {
		cancel()
		Eventually(done).WithTimeout(patience).Should(BeClosed())
	})
	return reach, complete
}

var _ = Describe("Reach", func() {
	fails := func(reason Reason, text string) OmegaMatcher {
		return And(HaveField("Connected", false), HaveField("Reason", reason), HaveField("Since", Not(BeZero())), HaveField("Err", MatchError(ContainSubstring(text))))
	}

	It("reports the connection state, the time of its last change, and the error", func() {
		var r Reach
		Expect(r.Status()).To(BeZero())
		r.note("services", false, "", nil)
		up := r.Status()
		Expect(up.Connected).To(BeTrue())
		r.note("services", true, "", nil)
		Expect(r.Status()).To(Equal(up), "the state has not changed")
		r.note("nodes", true, Unreachable, errTest)
		down := r.Status()
		Expect(down).To(fails(Unreachable, "away"))
		Expect(down.Since).To(BeTemporally(">=", up.Since))
		r.note("services", true, Forbidden, errors.New("no"))
		Expect(r.Status()).To(And(fails(Forbidden, "no"), HaveField("Since", down.Since)), "the first resource, since the time of the first failure")
		r.note("services", false, "", nil)
		Expect(r.Status()).To(fails(Forbidden, "no"), "a list does not prove that watches are allowed")
		r.note("services", true, "", nil)
		Expect(r.Status()).To(fails(Unreachable, "away"))
		r.note("nodes", true, "", nil)
		Expect(r.Status().Connected).To(BeTrue())
	})

	DescribeTable("reports why the initial sync fails", func(reason Reason, text string, change func(cluster, user map[string]any), fault func(http.ResponseWriter, *http.Request) bool) {
		s := newFakeServer()
		s.become(fault)
		reach, complete := follow(s.kubeconfig(change))
		Eventually(reach.Status).WithTimeout(patience).Should(fails(reason, text))
		Expect(complete).NotTo(BeClosed())
	},
		Entry("401", Unauthorized, "services: the API server returned 401 Unauthorized", nil, refuses(401, every)),
		Entry("403", Forbidden, "services: the API server returned 403 Forbidden", nil, refuses(403, every)),
		Entry("a role without EndpointSlices", Forbidden, "endpointslices: the API server returned 403 Forbidden", nil, refuses(403, ofSlices)),
		Entry("429", TooManyRequests, "the API server returned 429", nil, refuses(429, every)),
		Entry("500", ServerError, "the API server returned 500", nil, refuses(500, every)),
		Entry("404", UnexpectedAnswer, "the API server returned 404", nil, refuses(404, every)),
		Entry("a proxy that answers 200 with HTML", UnexpectedAnswer, noList("text/html"), nil, answers("text/html", "<html><body>log in</body></html>", every)),
		Entry("a proxy that answers 200 with JSON", UnexpectedAnswer, "services: the response from 127.0.0.1:", nil, answers("application/json", `{"ok":true}`, every)),
		Entry("a proxy that answers 200 with JSON, except to watches", UnexpectedAnswer, "list services: the response from 127.0.0.1:", nil,
			answers("application/json", `{"ok":true}`, func(r *http.Request) bool { return !isWatch(r) })),
		Entry("JSON of another kind than a list", UnexpectedAnswer, noList("application/json"), nil, answers("application/json", ` {"apiVersion": "v1", "kind": "Status"}`, every)),
		Entry("JSON that is not an object", UnexpectedAnswer, noList("application/json"), nil, answers("application/json", `["ok"]`, every)),
		Entry("an unknown host name", NameNotFound, "lookup api.invalid", func(cluster, _ map[string]any) { cluster["server"] = "https://api.invalid" }, nil),
		Entry("no server at the address", Unreachable, "connection refused", func(cluster, _ map[string]any) { cluster["server"] = "https://127.0.0.1:1" }, nil),
		Entry("a certificate of another CA", TLSFailed, "x509: ", func(cluster, _ map[string]any) { delete(cluster, "certificate-authority-data") }, nil),
		Entry("a certificate for another name", TLSFailed, "x509: ", func(cluster, _ map[string]any) { cluster["tls-server-name"] = "other.test" }, nil),
		Entry("an exec plugin that fails", NoCredentials, "getting credentials: exec: executable false failed", func(_, user map[string]any) {
			delete(user, "token")
			user["exec"] = map[string]any{"apiVersion": "client.authentication.k8s.io/v1", "command": "false", "interactiveMode": "Never"}
		}, nil),
	)

	It("reports why changes no longer arrive after the initial sync, until a watch succeeds", func() {
		s := newFakeServer()
		reach, complete := follow(s.kubeconfig(nil))
		Eventually(complete).WithTimeout(patience).Should(BeClosed())
		Eventually(reach.Status).WithTimeout(patience).Should(HaveField("Connected", true))
		s.become(refuses(401, every))
		Eventually(reach.Status).WithTimeout(patience).Should(fails(Unauthorized, "the API server returned 401"))
		s.become(answers("application/json", `{"ok":true}`, every))
		Eventually(reach.Status).WithTimeout(patience).Should(fails(UnexpectedAnswer, noList("application/json")))
		Consistently(reach.Status).WithTimeout(5 * time.Second).Should(fails(UnexpectedAnswer, noList("application/json")))
		s.become(nil)
		Eventually(reach.Status).WithTimeout(2 * patience).Should(And(HaveField("Connected", true), HaveField("Err", BeNil())))
	})

	It("reports the verb that a role lacks, even if lists succeed", func() {
		s := newFakeServer()
		s.become(refuses(403, func(r *http.Request) bool { return isWatch(r) && ofSlices(r) }))
		reach, complete := follow(s.kubeconfig(nil))
		Eventually(complete).WithTimeout(patience).Should(BeClosed(), "lists are enough for the initial sync")
		Eventually(reach.Status).WithTimeout(patience).Should(fails(Forbidden, "watch endpointslices: the API server returned 403"))
		Consistently(reach.Status).WithTimeout(2 * time.Second).Should(fails(Forbidden, "watch endpointslices"))
	})

	It("does not report an API server before Kubernetes 1.31, which refuses a field selector of Services", func() {
		s := newFakeServer()
		s.become(refuses(400, func(r *http.Request) bool { return r.URL.Query().Get("fieldSelector") == notHeadless }))
		reach, complete := follow(s.kubeconfig(nil))
		Eventually(complete).WithTimeout(patience).Should(BeClosed())
		Expect(reach.Status()).To(HaveField("Connected", true))
	})

	It("does not report a re-established watch as a failure", func() {
		s := newFakeServer()
		var gone, watches atomic.Int64
		s.become(func(w http.ResponseWriter, r *http.Request) bool {
			if !isWatch(r) || r.URL.Query().Has("sendInitialEvents") {
				return false
			}
			if gone.Add(1) <= 3 {
				return refuses(410, every)(w, r)
			}
			watches.Add(1)
			return false
		})
		reach, _ := follow(s.kubeconfig(nil))
		Eventually(func() int64 {
			Expect(reach.Status().Err).NotTo(HaveOccurred())
			return watches.Load()
		}).WithTimeout(patience).Should(BeNumerically(">=", 3))
		Expect(reach.Status().Connected).To(BeTrue())
	})
})

// TestPause expects growing delays of the responses if the API server answers each watch with 410 Gone: the client
// requests the watch again and again.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r, gone := &Reach{}, http.StatusGone
		transport := r.wrap(roundTripper(func(*http.Request) (*http.Response, error) { return &http.Response{StatusCode: gone}, nil }))
		watch := func() time.Duration {
			began := time.Now()
			_, err := transport.RoundTrip(httptest.NewRequest(http.MethodGet, "/api/v1/services?watch=true", nil))
			g.Expect(err).NotTo(HaveOccurred())
			return time.Since(began)
		}
		g.Expect(watch()).To(BeZero(), "the first response may be legitimate")
		g.Expect(watch()).To(Equal(200 * time.Millisecond))
		g.Expect(watch()).To(Equal(400 * time.Millisecond))
		g.Expect(r.Status()).To(BeZero())
		for range 10 {
			g.Expect(watch()).To(BeNumerically("<=", maxPause))
		}
		g.Expect(r.Status().Err).To(MatchError("watch services: the API server returned 410 Gone"), "repeated responses are a failure")
		gone = http.StatusOK
		g.Expect(watch()).To(BeZero())
		g.Expect(r.Status().Connected).To(BeTrue())
		gone = http.StatusGone
		g.Expect(watch()).To(BeZero(), "the delays start over")
	})
}

var errTest = errors.New("away")
