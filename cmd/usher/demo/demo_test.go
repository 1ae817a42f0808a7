package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
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

const longEnough = 20 * time.Second

// unable is a server that cannot be a black hole.
type unable struct {
	faultyServer
	set []string // the kinds of faults
}

func (s *unable) setFault(f fault) error {
	if s.set = append(s.set, f.kind); f.kind == api.DemoBlackhole {
		return errors.ErrUnsupported
	}
	return nil
}

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
		ctx, cancel := context.WithTimeout(context.Background(), longEnough)
		defer cancel()
		if d.find(name).service.name == "echo" {
			return askUDP(ctx, address(name))
		}
		return askHTTP(ctx, &ordinary, "http://"+address(name)+"/")
	}
	// post returns the API's response to a request.
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

	It("has valid manifests for all its Services", func() {
		r, err := manifest.Check(manifest.Options{Paths: []string{d.Dir}})
		Expect(err).NotTo(HaveOccurred())
		Expect(r.Errors).To(BeEmpty())
		Expect(r.Warnings).To(BeEmpty())
		Expect(r.Services).To(HaveLen(len(services)))
	})

	It("removes its directory and stops its servers when it is closed", func() {
		other, err := Start()
		Expect(err).NotTo(HaveOccurred())
		other.Close()
		Expect(other.Dir).NotTo(BeADirectory())
		_, err = net.Dial("tcp", other.find("web-1").addr.String())
		Expect(err).To(MatchError(syscall.ECONNREFUSED))
	})

	It("has servers that respond with their names", func() {
		Expect(ask("web-2")).To(Equal("I am web-2"))
		Expect(ask("echo-1")).To(Equal("echo-1: hello"))
	})

	It("injects refuse, slow and reset faults, and repairs all servers", func() {
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
		// The client may get the reset while it writes, or find its connection closed.
		Expect(err).To(Or(MatchError(syscall.ECONNRESET), MatchError(syscall.EPIPE), MatchError(net.ErrClosed), MatchError(ContainSubstring("EOF"))))

		status, text := post(api.DemoRepairPath, `{"all": true}`, api.DemoHeader)
		Expect(status).To(Equal(http.StatusOK), text)
		for _, b := range d.backends {
			Expect(ask(b.name)).To(ContainSubstring(b.name))
		}
	})

	It("keeps the fault of a server if another one cannot be set", func() {
		s := &unable{}
		b := &backend{service: services[0], name: "web-1", server: s}
		Expect(b.setFault(api.DemoSlow)).To(Succeed())
		Expect(b.setFault(api.DemoBlackhole)).To(MatchError(errors.ErrUnsupported))
		Expect(s.set).To(Equal([]string{api.DemoSlow, api.DemoBlackhole, api.DemoSlow}))
	})

	It("lets connection attempts to a black hole time out", func() {
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

	It("resets a percentage of connections after the request", func() {
		breakIt("web-1", "reset=25%")
		failed := 0
		for range 8 {
			if _, err := ask("web-1"); err != nil {
				Expect(err).To(Or(MatchError(syscall.ECONNRESET), MatchError(ContainSubstring("EOF"))))
				failed++
			}
		}
		Expect(failed).To(Equal(2))
	})

	It("delays responses by the given time, also for half-closed connections", func() {
		breakIt("echo-1", "delay=120ms")
		started := time.Now()
		Expect(ask("echo-1")).To(Equal("echo-1: hello"))
		Expect(time.Since(started)).To(BeNumerically(">=", 120*time.Millisecond))

		breakIt("web-1", "delay=120ms")
		c, err := net.Dial("tcp", address("web-1"))
		Expect(err).NotTo(HaveOccurred())
		defer c.Close()
		started = time.Now()
		fmt.Fprintf(c, "GET / HTTP/1.0\r\n\r\n")
		Expect(c.(*net.TCPConn).CloseWrite()).To(Succeed())
		Expect(io.ReadAll(c)).To(HaveSuffix("I am web-1\n"))
		Expect(time.Since(started)).To(BeNumerically(">=", 120*time.Millisecond))
	})

	It("fails requests intermittently if a server is flaky", func() {
		breakIt("echo-1", "flaky=50%")
		short := func() error {
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			_, err := askUDP(ctx, address("echo-1"))
			return err
		}
		Expect(ask("echo-1")).To(Equal("echo-1: hello"))
		Expect(short()).To(MatchError(os.ErrDeadlineExceeded))

		breakIt("web-1", "flaky=50%")
		again := func() error {
			_, err := ask("web-1")
			return err
		}
		for range 2 {
			Eventually(again).WithTimeout(longEnough).Should(MatchError(syscall.ECONNREFUSED))
			Eventually(again).WithTimeout(longEnough).Should(Succeed())
		}
		breakIt("web-1", "flaky=100%")
		Consistently(again).WithTimeout(1500 * time.Millisecond).Should(MatchError(syscall.ECONNREFUSED))
		breakIt("web-1", "delay=1ms")
		Consistently(again).WithTimeout(1500 * time.Millisecond).Should(Succeed())
	})

	It("leaves connections unanswered with the faults half-open and half-close", func() {
		begin := func() *net.TCPConn {
			GinkgoHelper()
			c, err := net.Dial("tcp", address("web-1"))
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(c.Close)
			fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: web\r\n\r\n")
			return c.(*net.TCPConn)
		}
		buf := make([]byte, 100)
		breakIt("web-1", api.DemoHalfOpen)
		open := begin()
		Expect(open.CloseWrite()).To(Succeed())
		Expect(open.SetReadDeadline(time.Now().Add(200 * time.Millisecond))).To(Succeed())
		_, err := open.Read(buf)
		Expect(err).To(MatchError(os.ErrDeadlineExceeded), "neither a response nor EOF")

		breakIt("web-1", api.DemoHalfClose)
		closed := begin()
		Expect(closed.SetReadDeadline(time.Now().Add(longEnough))).To(Succeed())
		_, err = closed.Read(buf)
		Expect(err).To(MatchError(io.EOF))
		for range 3 {
			_, err = closed.Write([]byte("more"))
			Expect(err).NotTo(HaveOccurred(), "it keeps reading")
		}
		Expect(open.SetReadDeadline(time.Now().Add(longEnough))).To(Succeed())
		_, err = open.Read(buf)
		Expect(err).To(MatchError(io.EOF), "the server has stopped being half-open")
	})

	It("holds at most the newest 1,000 connections, and drops closed ones", func() {
		a, _ := (&httpServer{}).answerer(fault{})
		first, second := a.keep(), a.keep()
		for range maxHeld - 2 {
			a.keep()
		}
		Expect(first).NotTo(BeClosed())
		a.keep()
		Expect(first).To(BeClosed())
		a.held.Remove(second)
		third := a.held.Keys()[0]
		a.keep()
		Expect(third).NotTo(BeClosed(), "there was a free slot")
		Expect(a.held.Len()).To(Equal(maxHeld))
	})

	It("accepts slowly: connections wait in the backlog, and time out once it is full", func() {
		if runtime.GOOS != "linux" {
			Skip("the size of the backlog is fixed on Linux only")
		}
		breakIt("web-1", api.DemoSlowAccept)
		started := time.Now()
		Expect(ask("web-1")).To(Equal("I am web-1"))
		Expect(time.Since(started)).To(BeNumerically("<=", 20*slowAccept))
		Eventually(func() error {
			c, err := net.DialTimeout("tcp", address("web-1"), 50*time.Millisecond)
			if err == nil {
				DeferCleanup(c.Close)
			}
			return err
		}).WithTimeout(longEnough).WithPolling(time.Millisecond).Should(Satisfy(os.IsTimeout), "the backlog is full")
	})

	DescribeTable("rejects a request",
		func(status int, says, path, body string, header ...string) {
			got, text := post(path, body, header...)
			Expect(text).To(ContainSubstring(says))
			Expect(got).To(Equal(status))
		},
		Entry("without the demo's header", http.StatusForbidden, api.DemoHeader+": 1 is required", api.DemoRepairPath, `{"all": true}`),
		Entry("for an unknown server", http.StatusNotFound, "must be one of web-1, web-2", api.DemoBreakPath, `{"endpoint": "web-9", "how": "slow"}`, api.DemoHeader),
		Entry("for a fault that UDP does not support", http.StatusBadRequest, "must be one of refuse, blackhole, slow, delay=300ms, flaky=10% for echo-1, a UDP server", api.DemoBreakPath, `{"endpoint": "echo-1", "how": "reset"}`, api.DemoHeader),
		Entry("for a fault without its value", http.StatusBadRequest, `invalid value \"flaky\": must be one of refuse, blackhole, slow, delay=300ms, flaky=10%, reset, reset=10%, slow-accept, half-open, half-close for`, api.DemoBreakPath, `{"endpoint": "web-1", "how": "flaky"}`, api.DemoHeader),
		Entry("for a share above 100%", http.StatusBadRequest, `flaky: invalid value \"200%\": must be a share from 0.1% to 100%`, api.DemoBreakPath, `{"endpoint": "web-1", "how": "flaky=200%"}`, api.DemoHeader),
		Entry("for a share that is not a number", http.StatusBadRequest, `reset: invalid value \"NaN%\": must be a share from 0.1% to 100%`, api.DemoBreakPath, `{"endpoint": "web-1", "how": "reset=NaN%"}`, api.DemoHeader),
		Entry("for an invalid delay", http.StatusBadRequest, `delay: invalid value \"x\": must be a time from 1ms to 1m, such as 300ms`, api.DemoBreakPath, `{"endpoint": "web-1", "how": "delay=x"}`, api.DemoHeader),
		Entry("for a delay that is too long", http.StatusBadRequest, `delay: invalid value \"2h\": must be a time from 1ms to 1m`, api.DemoBreakPath, `{"endpoint": "web-1", "how": "delay=2h"}`, api.DemoHeader),
		Entry("without a fault", http.StatusBadRequest, "value is required", api.DemoBreakPath, `{"endpoint": "echo-1"}`, api.DemoHeader),
		Entry("with an unknown field", http.StatusBadRequest, "invalid body", api.DemoRepairPath, `{"every": true}`, api.DemoHeader),
	)
})
