package serve

import (
	"context"
	"log/slog"
	"strings"

	"github.com/sirupsen/logrus"
	"k8s.io/klog/v2"
)

// LogKlog makes client-go's klog messages go to log at level debug: client-go repeats them with each retry, and usher
// itself logs the important ones once. If log is nil, the messages are dropped.
func LogKlog(log *logrus.Logger) { klog.SetSlogLogger(slog.New(klogHandler{log, nil})) }

// klogHandler is a slog.Handler.
type klogHandler struct {
	log   *logrus.Logger // nil for none
	attrs []slog.Attr
}

// Enabled implements slog.Handler.
func (h klogHandler) Enabled(context.Context, slog.Level) bool {
	return h.log != nil && h.log.IsLevelEnabled(logrus.DebugLevel)
}

// Handle implements slog.Handler.
func (h klogHandler) Handle(ctx context.Context, r slog.Record) error {
	if !h.Enabled(ctx, r.Level) { // klog does not call Enabled for errors
		return nil
	}
	fields := logrus.Fields{"from": "client-go"}
	add := func(a slog.Attr) bool {
		fields[a.Key] = a.Value.String()
		return true
	}
	for _, a := range h.attrs {
		add(a)
	}
	r.Attrs(add)
	h.log.WithFields(fields).Debug(strings.Join(strings.Fields(r.Message), " ")) // the message may have several lines
	return nil
}

// WithAttrs implements slog.Handler.
func (h klogHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return klogHandler{h.log, append(h.attrs[:len(h.attrs):len(h.attrs)], attrs...)}
}

// WithGroup implements slog.Handler. A line has no groups.
func (h klogHandler) WithGroup(string) slog.Handler { return h }
