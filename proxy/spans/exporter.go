package spans

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"

	"github.com/usherproxy/usher/proxy/trace"
)

const (
	// maxWaiting bounds the spans that wait to be exported, or are on their way.
	maxWaiting = 4096
	// stopTime is how long the last spans may take.
	stopTime = 5 * time.Second
)

// Exporter makes spans of connections and sends them.
type Exporter struct {
	ends   *trace.Follower
	log    logrus.FieldLogger
	rarely rate.Sometimes

	provider *sdk.TracerProvider
	tracer   oteltrace.Tracer

	waiting        atomic.Int64 // spans
	exported, lost atomic.Int64 // connections
}

// Options say who tells.
type Options struct {
	Version string
	Node    string // the name of the Node object; "" if there is none
	// Log is told what goes wrong.
	Log logrus.FieldLogger
}

// New returns an Exporter of the connections that end from now on, or nil if the environment
// does not ask for one. There is one in a process.
func New(ctx context.Context, t *trace.Log, o Options) (*Exporter, error) {
	if ok, err := wanted(); !ok {
		return nil, err
	}
	others, err := sampledShare()
	if err != nil {
		return nil, err
	}
	var wrong error // what the SDK finds in the environment, it tells in this way only
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { wrong = errors.Join(wrong, err) }))
	who, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(), resource.WithAttributes(whoAmI(o)...), resource.WithFromEnv())
	if err != nil {
		return nil, err
	}
	to, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, err
	}
	// The sampler is asked here, and not the SDK's for a span that is made first: most are
	// not exported.
	ends := t.Follow(func(o trace.Outcome) bool { return o != 0 || others > 0 && rand.Float64() < others })
	x := &Exporter{ends: ends, log: o.Log, rarely: rate.Sometimes{First: 1, Interval: 10 * time.Second}}
	queue := sdk.NewBatchSpanProcessor(&counting{to, x}, sdk.WithMaxQueueSize(maxWaiting+mostSpans))
	x.provider = sdk.NewTracerProvider(sdk.WithSpanProcessor(queue), sdk.WithResource(who), sdk.WithSampler(sdk.AlwaysSample()))
	x.tracer = x.provider.Tracer(scope)
	if wrong != nil {
		return nil, errors.Join(wrong, x.provider.Shutdown(ctx))
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(x.failed))
	return x, nil
}

// scope is the name of what makes the spans.
const scope = "github.com/usherproxy/usher/proxy/spans"

// mostSpans is more than one connection has.
const mostSpans = 64

// Exported returns of how many connections the spans were sent. Lost are those of which they are
// missing: the trace no longer had the connection when it was its turn, which may have been one
// that is not exported, too many were waiting, or they could not be sent.
func (x *Exporter) Exported() int64 { return x.exported.Load() }

// Lost returns of how many connections the spans are missing: see Exported.
func (x *Exporter) Lost() int64 { return x.lost.Load() }

// Run exports until ctx ends, and then what is left, for some seconds at the most.
func (x *Exporter) Run(ctx context.Context) {
	x.ends.Run(ctx, x.take, func() {})
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	if err := x.provider.Shutdown(last); err != nil {
		x.failed(err)
	}
}

// take makes spans of a connection.
func (x *Exporter) take(e *trace.Event, missed int64) {
	x.lost.Add(missed)
	if x.waiting.Load() >= maxWaiting {
		x.lost.Add(1)
		return
	}
	x.waiting.Add(tell(x.tracer, e))
}

// failed is told of what cannot be exported.
func (x *Exporter) failed(err error) {
	x.rarely.Do(func() {
		x.log.WithError(err).Error("Spans cannot be exported; they are lost (logged every 10 s at the most)")
	})
}

// counting counts what becomes of spans.
type counting struct {
	sdk.SpanExporter
	of *Exporter
}

func (c *counting) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := c.SpanExporter.ExportSpans(ctx, spans)
	connections := int64(0)
	for _, s := range spans {
		if !s.Parent().IsValid() {
			connections++
		}
	}
	if err != nil {
		c.of.lost.Add(connections)
	} else {
		c.of.exported.Add(connections)
	}
	c.of.waiting.Add(-int64(len(spans)))
	return err
}
