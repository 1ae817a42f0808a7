package spans

import (
	"context"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/trace"
)

func TestSpans(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "spans")
}

var _ = DescribeTable("nobody is told", func(environment map[string]string) {
	for name, value := range environment {
		GinkgoT().Setenv(name, value)
	}
	x, err := New(context.Background(), trace.NewLog(100), Options{Log: logrus.New()})
	Expect(err).NotTo(HaveOccurred())
	Expect(x).To(BeNil())
},
	Entry("without an endpoint", map[string]string{sampler: "always_on"}),
	Entry("if that is disabled", map[string]string{endpoint: "http://127.0.0.1:1", disabled: "TRUE"}),
	Entry("if there is to be no exporter", map[string]string{endpoint: "http://127.0.0.1:1", exporter: "none"}),
)

// BenchmarkConnection is what a connection costs that is not exported, where one in a
// hundred is, and what its steps cost without an Exporter.
func BenchmarkConnection(b *testing.B) {
	run := func(b *testing.B, t *trace.Log) {
		service := &trace.Service{Port: config.PortID{Namespace: "default", Service: "web", Port: "http", Family: config.IPv4}, Protocol: config.TCP}
		at := netip.MustParseAddrPort("10.1.0.8:80")
		for i := range b.N {
			now := time.Now()
			life := &trace.Life{ID: uint64(i), Service: service, From: at, To: at, Began: now}
			t.Begin(life)
			t.Step(life, &trace.Event{Kind: trace.Accepted, Time: now})
			t.Step(life, &trace.Event{Kind: trace.Attempt, Time: now, Attempt: 1, Endpoint: at})
			t.Step(life, &trace.Event{Kind: trace.Established, Time: now, Attempt: 1, Endpoint: at})
			t.Step(life, &trace.Event{Kind: trace.Closed, Time: now, End: trace.ClientClosed, Endpoint: at})
		}
	}
	b.Run("off", func(b *testing.B) { run(b, trace.NewLog(8192)) })
	b.Run("on", func(b *testing.B) {
		b.Setenv(endpoint, "http://127.0.0.1:1")
		b.Setenv(sampler, "traceidratio")
		b.Setenv("OTEL_TRACES_SAMPLER_ARG", "0.01")
		t, log := trace.NewLog(1<<20), logrus.New()
		log.SetLevel(logrus.PanicLevel)
		x, err := New(b.Context(), t, Options{Log: log})
		if err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(b.Context())
		done := make(chan struct{})
		go func() { x.Run(ctx); close(done) }()
		b.ResetTimer()
		run(b, t)
		cancel()
		<-done
	})
}
