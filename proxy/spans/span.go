package spans

import (
	"context"
	"net/netip"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/usherproxy/usher/proxy/trace"
)

// whoAmI returns what the environment does not say of this process, or says otherwise.
func whoAmI(o Options) []attribute.KeyValue {
	who := []attribute.KeyValue{semconv.ServiceName("usher"), semconv.ServiceVersion(o.Version)}
	if o.Node != "" {
		who = append(who, semconv.K8SNodeName(o.Node))
	}
	return who
}

// tell makes the spans of a connection that has ended, and returns how many are to be exported.
func tell(tracer oteltrace.Tracer, e *trace.Event) (spans int64) {
	ctx, span := tracer.Start(context.Background(), e.Port.String(), oteltrace.WithTimestamp(e.Life.Began), oteltrace.WithSpanKind(oteltrace.SpanKindServer))
	span.SetAttributes(
		semconv.ClientAddress(e.Client.Addr().String()), semconv.ClientPort(int(e.Client.Port())),
		semconv.ServerAddress(e.VIP.Addr().String()), semconv.ServerPort(int(e.VIP.Port())),
		transport(e), networkType(e.VIP),
		semconv.K8SNamespaceName(e.Port.Namespace),
		attribute.String("usher.service", e.Port.Service),
		attribute.String("usher.port", e.Port.Port),
		attribute.Int64("usher.connection", int64(e.Conn)),
		attribute.Int("usher.attempts", e.Life.Attempts()),
		attribute.StringSlice("usher.outcome", e.Outcome.Words()),
		attribute.String("usher.end", string(e.End)),
		attribute.Int64("usher.bytes_to_endpoint", e.ToEndpoint),
		attribute.Int64("usher.bytes_to_client", e.ToClient),
	)
	peer := e.Client
	if e.Via != nil {
		peer = *e.Via
	}
	span.SetAttributes(semconv.NetworkPeerAddress(peer.Addr().String()), semconv.NetworkPeerPort(int(peer.Port())))
	if first := e.Life.FirstByte(); first > 0 {
		span.SetAttributes(attribute.Float64("usher.first_byte_seconds", first.Seconds()))
	}
	if e.Outcome&trace.Broken != 0 {
		span.SetAttributes(attribute.String("error.type", string(e.End)))
		span.SetStatus(codes.Error, e.Err)
	}
	tried := e.Life.Tried()
	for i := range tried {
		tellAttempt(ctx, tracer, e, i+1, &tried[i])
	}
	span.End(oteltrace.WithTimestamp(e.Life.Began.Add(e.Took)))
	return int64(1 + len(tried))
}

// tellAttempt makes the span of an attempt.
func tellAttempt(ctx context.Context, tracer oteltrace.Tracer, e *trace.Event, number int, t *trace.Tried) {
	began := e.Life.Began.Add(t.Began)
	_, span := tracer.Start(ctx, "attempt", oteltrace.WithTimestamp(began), oteltrace.WithSpanKind(oteltrace.SpanKindClient))
	address, port := t.Endpoint.Addr().String(), int(t.Endpoint.Port())
	span.SetAttributes(
		semconv.ServerAddress(address), semconv.ServerPort(port),
		semconv.NetworkPeerAddress(address), semconv.NetworkPeerPort(port),
		transport(e), networkType(t.Endpoint),
		attribute.Int("usher.attempt", number),
		attribute.String("usher.result", t.Result.String()),
		attribute.String("usher.reason", t.Reason),
	)
	if namespace, pod, ok := strings.Cut(t.Pod, "/"); ok {
		span.SetAttributes(semconv.K8SNamespaceName(namespace), semconv.K8SPodName(pod))
	}
	if t.PassedOver > 0 {
		span.SetAttributes(attribute.Int("usher.passed_over", t.PassedOver))
	}
	if t.Queued > 0 {
		span.SetAttributes(attribute.Float64("usher.queued_seconds", t.Queued.Seconds()))
	}
	if t.Err != "" {
		span.SetAttributes(attribute.String("error.type", t.Result.String()))
		span.SetStatus(codes.Error, t.Err)
	}
	span.End(oteltrace.WithTimestamp(began.Add(t.Took)))
}

func transport(e *trace.Event) attribute.KeyValue {
	return semconv.NetworkTransportKey.String(strings.ToLower(string(e.Protocol)))
}

func networkType(a netip.AddrPort) attribute.KeyValue {
	if a.Addr().Is4() {
		return semconv.NetworkTypeIPv4
	}
	return semconv.NetworkTypeIPv6
}
