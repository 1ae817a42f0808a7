package demo

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/config/manifest"
	"github.com/usherproxy/usher/proxy/admin/api"
)

func TestDemo(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "demo")
}

const patience = 20 * time.Second

var _ = Describe("the demo", func() {
	var d *Demo
	BeforeEach(func() {
		var err error
		d, err = Start()
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(d.Close)
	})
	address := func(name string) string { return d.find(name).addr.String() }
	ask := func(name string) (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if d.find(name).service.name == "echo" {
			return askUDP(ctx, address(name))
		}
		return askHTTP(ctx, "http://"+address(name)+"/")
	}
	// post returns how the API answers a request.
	post := func(path, body string, header ...string) (status int, text string) {
		request := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
		for _, h := range header {
			request.Header.Set(h, "1")
		}
		w := httptest.NewRecorder()
		d.Handler(http.NotFoundHandler()).ServeHTTP(w, request)
		return w.Code, w.Body.String()
	}
	breakIt := func(name, how string) {
		GinkgoHelper()
		status, text := post(api.DemoBreakPath, `{"endpoint": "`+name+`", "how": "`+how+`"}`, api.DemoHeader)
		Expect(status).To(Equal(http.StatusOK), text)
	}

	It("has manifests without a mistake, for Services with and without endpoints", func() {
		r, err := manifest.Check(manifest.Options{Paths: []string{d.Dir}})
		Expect(err).NotTo(HaveOccurred())
		Expect(r.Errors).To(BeEmpty())
		Expect(r.Warnings).To(BeEmpty())
		Expect(r.Services).To(HaveLen(len(services)))
	})

	It("leaves nothing when it is closed", func() {
		other, err := Start()
		Expect(err).NotTo(HaveOccurred())
		other.Close()
		Expect(other.Dir).NotTo(BeADirectory())
		_, err = net.Dial("tcp", other.find("web-1").addr.String())
		Expect(err).To(MatchError(syscall.ECONNREFUSED))
	})

	It("has servers that say who they are", func() {
		Expect(ask("web-2")).To(Equal("I am web-2"))
		Expect(ask("echo-1")).To(Equal("echo-1: hello"))
	})

	It("has faults that do what they are called, and can be mended", func() {
		for _, name := range []string{"web-1", "echo-1"} {
			breakIt(name, api.DemoRefuse)
			_, err := ask(name)
			Expect(err).To(MatchError(syscall.ECONNREFUSED))

			breakIt(name, api.DemoSlow)
			started := time.Now()
			Expect(ask(name)).To(ContainSubstring(name))
			Expect(time.Since(started)).To(BeNumerically(">=", slowAnswer))
		}
		breakIt("web-1", api.DemoReset)
		_, err := ask("web-1")
		Expect(err).To(Or(MatchError(syscall.ECONNRESET), MatchError(ContainSubstring("EOF"))))

		status, text := post(api.DemoMendPath, `{"all": true}`, api.DemoHeader)
		Expect(status).To(Equal(http.StatusOK), text)
		for _, b := range d.backends {
			Expect(ask(b.name)).To(ContainSubstring(b.name))
		}
	})

	It("has a black hole, from which nothing comes back", func() {
		if runtime.GOOS != "linux" {
			Skip("Linux only")
		}
		breakIt("web-1", api.DemoBlackhole)
		_, err := net.DialTimeout("tcp", address("web-1"), 200*time.Millisecond)
		Expect(err).To(Satisfy(os.IsTimeout))
		breakIt("web-1", api.DemoRefuse)
		_, err = net.Dial("tcp", address("web-1"))
		Expect(err).To(MatchError(syscall.ECONNREFUSED))
	})

	DescribeTable("refuses to be changed",
		func(status int, says, path, body string, header ...string) {
			got, text := post(path, body, header...)
			Expect(text).To(ContainSubstring(says))
			Expect(got).To(Equal(status))
		},
		Entry("without a header of its own", http.StatusForbidden, api.DemoHeader+": 1 is needed", api.DemoMendPath, `{"all": true}`),
		Entry("for a server that is not there", http.StatusNotFound, "is none of the demo's: web-1, web-2", api.DemoBreakPath, `{"endpoint": "web-9", "how": "slow"}`, api.DemoHeader),
		Entry("by a fault that UDP cannot have", http.StatusBadRequest, "is none of refuse, blackhole, slow, which is what can be done to echo-1", api.DemoBreakPath, `{"endpoint": "echo-1", "how": "reset"}`, api.DemoHeader),
		Entry("by no fault", http.StatusBadRequest, "nothing is given", api.DemoBreakPath, `{"endpoint": "echo-1"}`, api.DemoHeader),
		Entry("by what is no such object", http.StatusBadRequest, "the body is not what is wanted", api.DemoMendPath, `{"every": true}`, api.DemoHeader),
	)
})
