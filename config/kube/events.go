package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/sirupsen/logrus"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/usherproxy/usher/config"
)

// Events writes Events, so that users that inspect a Service with kubectl see why it is not served on a node. It counts
// repetitions instead of writing each, and limits how many it holds and writes. client-go's recorder does the same, but
// links 45 packages for its patches.
//
// Events are written to the core API. events.k8s.io merges Events with the same reason: of two faults of a Service,
// users would see only the first.
type Events struct {
	core     rest.Interface
	source   *Source
	nodeName string
	log      logrus.FieldLogger
	words    config.Words

	queue   chan *corev1.Event
	again   time.Duration                        // delay before usher repeats a write that got no answer
	written *lru.Cache[string, *corev1.Event]    // by content; used by run
	limits  *lru.Cache[types.UID, *rate.Limiter] // by the object concerned; used by run
}

// Limits of Events, as in client-go's recorder.
const (
	maxEventsQueued = 1000
	maxEventsKept   = 4096
	maxEventTries   = 12
	eventsAtOnce    = 25              // about one object
	eventsEvery     = 5 * time.Minute // one more about it
	eventRetry      = 10 * time.Second
)

// leftOut returns a function that logs the number of suppressed messages about a namespace.
func leftOut(log logrus.FieldLogger, what string) func(string, int) {
	return func(namespace string, n int) {
		log.WithFields(logrus.Fields{"namespace": namespace, "count": n}).Warn(what + " suppressed for objects of a namespace: too many; 'usher get services' shows current problems")
	}
}

// NewEvents returns Events that client writes until ctx ends. source has the objects concerned.
func NewEvents(ctx context.Context, client *Client, source *Source, nodeName string) *Events {
	e := newEvents(client, source, nodeName)
	go e.run(ctx)
	return e
}

func newEvents(client *Client, source *Source, nodeName string) *Events {
	written, _ := lru.New[string, *corev1.Event](maxEventsKept) // fails only for a size of 0 or less, as does the next
	limits, _ := lru.New[types.UID, *rate.Limiter](maxEventsKept)
	return &Events{
		core:     client.core,
		source:   source,
		nodeName: nodeName,
		log:      source.options.Log,
		words:    config.Words{LeftOut: leftOut(source.options.Log, "Events")},
		queue:    make(chan *corev1.Event, maxEventsQueued),
		again:    eventRetry,
		written:  written,
		limits:   limits,
	}
}

// run writes queued events until ctx ends.
func (e *Events) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-e.queue:
			e.record(ctx, event)
		}
	}
}

// record writes an event, unless there are too many about its object. If the API server does not answer, it retries,
// and all others wait; if the API server refuses the event, it is dropped.
func (e *Events) record(ctx context.Context, event *corev1.Event) {
	about := event.InvolvedObject
	limit, known := e.limits.Get(about.UID)
	if !known {
		limit = rate.NewLimiter(rate.Every(eventsEvery), eventsAtOnce)
		e.limits.Add(about.UID, limit)
	}
	if !limit.Allow() {
		return
	}
	says := strings.Join([]string{string(about.UID), event.Type, event.Reason, event.Message}, "\x00")
	for range maxEventTries {
		stored, err := e.write(ctx, event, says)
		var refused *apierrors.StatusError
		switch {
		case err == nil:
			e.written.Add(says, stored)
			return
		case errors.As(err, &refused), ctx.Err() != nil:
			e.log.WithError(err).Debug("Failed to write an Event")
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(e.again):
		}
	}
}

// write creates an event or, if the same one exists, increases its count.
func (e *Events) write(ctx context.Context, event *corev1.Event, says string) (*corev1.Event, error) {
	send := func(request *rest.Request) (*corev1.Event, error) {
		stored := &corev1.Event{}
		return stored, request.Namespace(event.Namespace).Resource("events").Do(ctx).Into(stored)
	}
	if before, there := e.written.Get(says); there {
		patch, err := json.Marshal(map[string]any{"count": before.Count + 1, "lastTimestamp": event.LastTimestamp})
		if err != nil {
			return nil, err
		}
		stored, err := send(e.core.Patch(types.MergePatchType).Name(before.Name).Body(patch))
		if !apierrors.IsNotFound(err) {
			return stored, err
		}
	}
	return send(e.core.Post().Body(event))
}

// Warn writes a warning about a Service, or about this Node if the Service is unknown. reason is one word in CamelCase.
func (e *Events) Warn(service types.NamespacedName, reason, message string) {
	e.queueEvent(service, corev1.EventTypeWarning, reason, message)
}

// Repaired writes that a fault of a Service is repaired.
func (e *Events) Repaired(service types.NamespacedName, reason, message string) {
	e.queueEvent(service, corev1.EventTypeNormal, reason, message)
}

func (e *Events) queueEvent(service types.NamespacedName, kind, reason, message string) {
	now := metav1.Now()
	if !e.words.Allow(service.Namespace, now.Time) {
		return
	}
	about := e.about(service)
	event := &corev1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: about.Namespace, Name: fmt.Sprintf("%s.%x", about.Name, now.UnixNano())},
		InvolvedObject:      about,
		Type:                kind,
		Reason:              reason,
		Message:             e.onNode(message),
		FirstTimestamp:      now,
		LastTimestamp:       now,
		Count:               1,
		Source:              corev1.EventSource{Component: component, Host: e.nodeName},
		ReportingController: component,
		ReportingInstance:   e.nodeName,
	}
	if event.Namespace == "" { // of a Node
		event.Namespace = metav1.NamespaceDefault
	}
	select {
	case e.queue <- event:
	default: // the API server has not answered for long
	}
}

// component is the source in Events.
const component = "usher"

// maxNote is the maximum length of a message in bytes: the API's limit for Events of events.k8s.io/v1 (API reference,
// field note).
const maxNote = 1024

// onNode adds the node's name: the usher instances of all nodes write Events about the same Service.
func (e *Events) onNode(message string) string {
	if e.nodeName != "" {
		message = "On node " + e.nodeName + ": " + message
	}
	return config.Cut(message, maxNote-len("… (1000000 bytes more)"))
}

func (e *Events) about(service types.NamespacedName) corev1.ObjectReference {
	if svc := e.source.Service(service); svc != nil {
		return corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: svc.Namespace, Name: svc.Name, UID: svc.UID, ResourceVersion: svc.ResourceVersion}
	}
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: e.nodeName, UID: types.UID(e.nodeName)}
}
