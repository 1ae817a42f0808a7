package accesslog_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/accesslog"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/outcome"
	"github.com/usherproxy/usher/proxy/trace"
)

func TestAccessLog(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "accesslog")
}

var (
	bad  = netip.MustParseAddrPort("10.1.0.7:80")
	good = netip.MustParseAddrPort("10.1.0.8:80")
	at   = time.Date(2026, 1, 2, 3, 4, 5, 600e6, time.UTC)
)

func servicePort(t *trace.Log, name string) *conn.Port {
	return &conn.Port{Observers: []conn.Observer{t}, ID: config.PortID{Namespace: "default", Service: "web", Port: name, Family: config.IPv4}, Protocol: config.TCP}
}

// retried records a connection that reached its endpoint at the second attempt.
func retried(t *trace.Log, err string) {
	life := &conn.Record{ID: 7, Port: servicePort(t, "http"), From: netip.MustParseAddrPort("192.0.2.2:48200"), To: netip.MustParseAddrPort("10.96.0.10:80"), Start: at.Add(-time.Second)}
	life.Accepted()
	life.Attempted(life.Start.Add(time.Millisecond), conn.Attempt{Endpoint: bad, Pod: "default/web-1", Duration: 500 * time.Microsecond, Result: conn.Refused, Err: err})
	life.Attempted(life.Start.Add(2*time.Millisecond), conn.Attempt{Endpoint: good, Pod: "default/web-2", Duration: time.Millisecond, SourceAddress: portal.SourceClient})
	life.EndpointFirstByte(life.Start.Add(3500 * time.Microsecond))
	life.Closed(at, outcome.Result{Outcome: outcome.ClientClosed, ToEndpoint: 73, ToClient: 131}, good)
}

var _ = Describe("an access log", func() {
	var t *trace.Log
	BeforeEach(func() { t = trace.NewLog(100) })

	// run runs a log until do has returned, and returns the log.
	run := func(o accesslog.Options, do func(l *accesslog.Log)) *accesslog.Log {
		GinkgoHelper()
		o.Log = logrus.New()
		o.Log.(*logrus.Logger).SetOutput(GinkgoWriter)
		l, err := accesslog.New(t, o)
		Expect(err).NotTo(HaveOccurred())
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() { l.Run(ctx) })
		do(l)
		cancel()
		running.Wait()
		return l
	}

	It("has one JSON line for each connection, with its attempts", func() {
		var out strings.Builder
		l := run(accesslog.Options{Path: "-", Out: &out, Format: accesslog.JSON}, func(*accesslog.Log) { retried(t, "connection refused") })
		Expect(out.String()).To(MatchJSON(`{"time":"2026-01-02T03:04:05.600Z","connection":7,"service":"default/web","port":"http","protocol":"TCP",
			"client":"192.0.2.2:48200","vip":"10.96.0.10:80","endpoint":"10.1.0.8:80","pod":"default/web-2","source":"client",
			"attempts":[{"endpoint":"10.1.0.7:80","pod":"default/web-1","ms":0.500,"error":"connection refused"},{"endpoint":"10.1.0.8:80","pod":"default/web-2","ms":1.000}],
			"connectMs":2.000,"firstByteMs":3.500,"durationMs":1000.000,"bytesToEndpoint":73,"bytesToClient":131,"end":"client-closed"}`))
		Expect(strings.Count(out.String(), "\n")).To(Equal(1))
		Expect(l.Written()).To(BeEquivalentTo(1))
	})

	It("completes a line of which only a part could be written", func() {
		out := &filling{}
		out.room.Store(10)
		l := run(accesslog.Options{Path: "-", Out: out, Format: accesslog.JSON}, func(l *accesslog.Log) {
			retried(t, "connection refused")
			Eventually(out.failed.Load).Should(BeEquivalentTo(1))
			out.room.Store(300)
			retried(t, "connection refused")
			Eventually(l.Lost).Should(BeEquivalentTo(1), "the second connection, for which there was no room")
			out.room.Store(10_000)
			retried(t, "connection refused")
			Eventually(l.Written).Should(BeEquivalentTo(2))
		})
		Expect(strings.Count(out.text.String(), "\n")).To(Equal(2))
		for line := range strings.Lines(out.text.String()) {
			Expect(json.Valid([]byte(line))).To(BeTrue(), line)
		}
		Expect(l.Lost()).To(BeEquivalentTo(1))
	})

	It("escapes error texts so that each line is valid JSON", func() {
		var out strings.Builder
		run(accesslog.Options{Path: "-", Out: &out, Format: accesslog.JSON}, func(*accesslog.Log) { retried(t, "a \"quoted\"\n\\ error") })
		var line struct{ Attempts []struct{ Error string } }
		Expect(json.Unmarshal([]byte(out.String()), &line)).To(Succeed())
		Expect(line.Attempts[0].Error).To(Equal("a \"quoted\"\n\\ error"))
	})

	It("has exactly the fields that the documentation lists", func() {
		page, err := os.ReadFile("../../docs/observing.md")
		Expect(err).NotTo(HaveOccurred())
		_, table, found := strings.Cut(string(page), "\n| field | value | present |\n|---|---|---|\n")
		Expect(found).To(BeTrue())
		table, _, _ = strings.Cut(table, "\n\n")
		documented := map[string]bool{}
		for row := range strings.Lines(table) {
			for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(strings.Split(row, "|")[1], -1) {
				documented[name[1]] = true
			}
		}

		var out strings.Builder
		run(accesslog.Options{Path: "-", Out: &out, Format: accesslog.JSON}, func(*accesslog.Log) {
			life := &conn.Record{ID: 7, Port: servicePort(t, "http"), From: good, Via: &bad, To: good, Start: at}
			life.Accepted()
			life.Attempted(at.Add(time.Millisecond), conn.Attempt{Endpoint: good, Pod: "default/web-2", Duration: time.Millisecond, Queued: time.Millisecond, SourceAddress: portal.SourceClient})
			life.EndpointFirstByte(at.Add(time.Second))
			life.Closed(at.Add(time.Second), outcome.Result{Outcome: outcome.EndpointReset, Err: errors.New("connection reset by peer")}, good)
		})
		var line map[string]any
		Expect(json.Unmarshal([]byte(out.String()), &line)).To(Succeed())
		line["lost"] = nil // on a separate line
		for name := range line {
			Expect(documented).To(HaveKey(name))
		}
		for name := range documented {
			Expect(line).To(HaveKey(name))
		}
	})

	It("contains the load balancer that a client connected through", func() {
		var out strings.Builder
		run(accesslog.Options{Path: "-", Out: &out, Format: accesslog.JSON}, func(*accesslog.Log) {
			life := &conn.Record{Port: servicePort(t, "http"), From: good, Via: &bad, To: good, Start: at}
			life.Accepted()
			life.Closed(at, outcome.Result{}, netip.AddrPort{})
		})
		Expect(out.String()).To(ContainSubstring(`"client":"10.1.0.8:80","via":"10.1.0.7:80","vip":"10.1.0.8:80"`))
	})

	It("contains the time in the queue of a client that got no endpoint", func() {
		var out strings.Builder
		run(accesslog.Options{Path: "-", Out: &out, Format: accesslog.JSON}, func(*accesslog.Log) {
			life := &conn.Record{Port: servicePort(t, "http"), From: good, To: good, Start: at}
			life.Accepted()
			life.Closed(at, outcome.Result{Outcome: outcome.QueueTimeout, Queued: time.Second}, netip.AddrPort{})
		})
		Expect(out.String()).To(ContainSubstring(`"queuedMs":1000.000,`))
	})

	It("omits Services that disable it, without counting their lines as lost", func() {
		var out strings.Builder
		l := run(accesslog.Options{Path: "-", Out: &out, Format: accesslog.JSON}, func(*accesslog.Log) {
			life := &conn.Record{Port: &conn.Port{Unlogged: true, Observers: []conn.Observer{t}}, From: good, To: good, Start: at}
			life.Accepted()
			life.Closed(at, outcome.Result{}, netip.AddrPort{})
			retried(t, "connection refused")
		})
		Expect(out.String()).To(HavePrefix(`{"time":"2026-01-02T03:04:05.600Z","connection":7,`))
		Expect([]int64{l.Written(), l.Lost()}).To(Equal([]int64{1, 0}))
	})

	It("has the same values in text format", func() {
		var out strings.Builder
		run(accesslog.Options{Path: "-", Out: &out, Format: accesslog.Text}, func(*accesslog.Log) { retried(t, "connection refused") })
		Expect(out.String()).To(Equal("2026-01-02T03:04:05.600Z default/web:http TCP 192.0.2.2:48200 10.96.0.10:80 10.1.0.8:80 default/web-2 10.1.0.7:80=refused/0.500,10.1.0.8:80=connected/1.000 2.000 1000.000 73 131 client-closed\n"))
	})

	It("quotes names in text format so that a connection stays on one line", func() {
		var out strings.Builder
		run(accesslog.Options{Path: "-", Out: &out, Format: accesslog.Text}, func(*accesslog.Log) {
			life := &conn.Record{ID: 7, Port: servicePort(t, "x\ny"), From: good, To: good, Start: at}
			life.Accepted()
			life.Attempted(at, conn.Attempt{Endpoint: good, Pod: "default/a b\n\x1b"})
			life.Closed(at, outcome.Result{Outcome: outcome.ClientClosed}, good)
		})
		Expect(out.String()).To(And(ContainSubstring(` "default/web:x\ny" TCP `), ContainSubstring(` "default/a b\n\x1b" `)))
		Expect(strings.Count(out.String(), "\n")).To(Equal(1))
	})

	It("continues in a new file after the old one was renamed", func() {
		path := filepath.Join(GinkgoT().TempDir(), "access.log")
		lines := func(name string) int {
			text, err := os.ReadFile(name)
			if errors.Is(err, os.ErrNotExist) {
				return 0
			}
			Expect(err).NotTo(HaveOccurred())
			return strings.Count(string(text), "\n")
		}
		run(accesslog.Options{Path: path, Format: accesslog.JSON}, func(*accesslog.Log) {
			retried(t, "")
			Eventually(func() int { return lines(path) }).Should(Equal(1))
			Expect(os.Rename(path, path+".1")).To(Succeed())
			Eventually(func() int {
				retried(t, "")
				return lines(path)
			}, "5s").Should(BeNumerically(">", 0))
		})
		Expect(lines(path+".1")).To(BeNumerically(">=", 1), "no line is lost during the rotation")
	})

	It("counts lost lines and records the number where they are missing", func() {
		disk := &slowDisk{begun: make(chan struct{}, 1), free: make(chan struct{})}
		l := run(accesslog.Options{Path: "-", Out: disk, Format: accesslog.JSON}, func(l *accesslog.Log) {
			retried(t, "")
			Eventually(disk.begun).Should(Receive())
			for range 100 { // 500 steps; the trace keeps 100
				retried(t, "")
			}
			close(disk.free)
		})
		Expect(l.Lost()).To(BeEquivalentTo(80))
		Expect(l.Written()).To(BeEquivalentTo(21))
		Expect(disk.text.String()).To(ContainSubstring(`"lost":80}`))
	})

	It("counts lines that cannot be written as lost", func() {
		closed, err := os.CreateTemp(GinkgoT().TempDir(), "")
		Expect(err).NotTo(HaveOccurred())
		closed.Close()
		l := run(accesslog.Options{Path: "-", Out: closed, Format: accesslog.Text}, func(*accesslog.Log) { retried(t, "") })
		Expect(l.Lost()).To(BeEquivalentTo(1))
		Expect(l.Written()).To(BeZero())
	})

	It("fails immediately if its file cannot be created", func() {
		_, err := accesslog.New(t, accesslog.Options{Path: filepath.Join(GinkgoT().TempDir(), "none", "x.log")})
		Expect(err).To(MatchError(os.ErrNotExist))
	})
})

// slowDisk keeps the written bytes. Writes block until the disk is free.
type slowDisk struct {
	begun, free chan struct{}
	text        strings.Builder
}

func (d *slowDisk) Write(p []byte) (int, error) {
	select {
	case d.begun <- struct{}{}:
	default:
	}
	<-d.free
	return d.text.Write(p)
}

// BenchmarkConnection measures the cost of a connection with an access log, in both formats.
func BenchmarkConnection(b *testing.B) {
	for _, format := range []accesslog.Format{accesslog.JSON, accesslog.Text} {
		b.Run(string(format), func(b *testing.B) {
			t := trace.NewLog(8192)
			l, _ := accesslog.New(t, accesslog.Options{Path: "-", Out: io.Discard, Format: format, Log: logrus.New()})
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan struct{})
			go func() { l.Run(ctx); close(done) }()
			for range b.N {
				retried(t, "connection refused")
			}
			cancel()
			<-done
			b.ReportMetric(float64(l.Lost())/float64(b.N), "lost/op")
		})
	}
}

// filling is a Writer that has room for a number of bytes, like a disk.
type filling struct {
	text         strings.Builder
	room, failed atomic.Int64
}

func (f *filling) Write(b []byte) (int, error) {
	n := min(len(b), int(f.room.Load()))
	f.room.Add(-int64(n))
	f.text.Write(b[:n])
	if n < len(b) {
		f.failed.Add(1)
		return n, syscall.ENOSPC
	}
	return n, nil
}
