package kube

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/usherproxy/usher/config"
)

// Events writes Events, so that people who look at a Service with kubectl see
// why it is not served on a node. client-go counts repetitions instead of
// writing each, and bounds how many it holds and writes.
//
// They are written to the core API: for events.k8s.io, client-go takes Events of
// one reason for the same, and of two faults of a Service only the first is told.
type Events struct {
	recorder record.EventRecorder
	source   *Source
	nodeName string
	words    config.Words
}

// leftOut returns what logs how many messages about a namespace were left out.
func leftOut(log logrus.FieldLogger, what string) func(string, int) {
	return func(namespace string, n int) {
		log.WithFields(logrus.Fields{"namespace": namespace, "count": n}).Warn(what + " about objects of a namespace were left out: there are too many; 'usher get services' shows what is wrong now")
	}
}

// NewEvents returns Events that are written by client until ctx ends. source
// knows the objects that they are about.
func NewEvents(ctx context.Context, client *Client, source *Source, nodeName string) *Events {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(eventSink{client.core})
	context.AfterFunc(ctx, broadcaster.Shutdown)
	return &Events{
		recorder: broadcaster.NewRecorder(scheme, corev1.EventSource{Component: "usher", Host: nodeName}),
		source:   source,
		nodeName: nodeName,
		words:    config.Words{LeftOut: leftOut(source.options.Log, "Events")},
	}
}

// eventSink writes Events by a REST client of core/v1. It implements record.EventSink.
type eventSink struct{ core rest.Interface }

// Create implements record.EventSink.
func (s eventSink) Create(event *corev1.Event) (*corev1.Event, error) {
	return s.send(s.core.Post().Body(event), event)
}

// Update implements record.EventSink.
func (s eventSink) Update(event *corev1.Event) (*corev1.Event, error) {
	return s.send(s.core.Put().Name(event.Name).Body(event), event)
}

// Patch implements record.EventSink.
func (s eventSink) Patch(event *corev1.Event, data []byte) (*corev1.Event, error) {
	return s.send(s.core.Patch(types.StrategicMergePatchType).Name(event.Name).Body(data), event)
}

func (s eventSink) send(request *rest.Request, event *corev1.Event) (*corev1.Event, error) {
	stored := &corev1.Event{}
	return stored, request.Namespace(event.Namespace).Resource("events").Do(context.Background()).Into(stored)
}

// Warn writes a warning about a Service; about this Node if the Service is not
// known. reason is one word in CamelCase.
func (e *Events) Warn(service types.NamespacedName, reason, message string) {
	e.write(service, corev1.EventTypeWarning, reason, message)
}

// Tell writes that something about a Service is well again.
func (e *Events) Tell(service types.NamespacedName, reason, message string) {
	e.write(service, corev1.EventTypeNormal, reason, message)
}

func (e *Events) write(service types.NamespacedName, kind, reason, message string) {
	if e.words.Allow(service.Namespace, time.Now()) {
		e.recorder.Event(e.about(service), kind, reason, e.onNode(message))
	}
}

// maxNote is how long a message may be, in bytes: what the API allows for Events of
// events.k8s.io/v1 (API reference, field note). Nobody would read more.
const maxNote = 1024

// onNode adds the node's name: every node has an usher, and their Events are
// about the same Service.
func (e *Events) onNode(message string) string {
	if e.nodeName != "" {
		message = "On node " + e.nodeName + ": " + message
	}
	return config.Cut(message, maxNote-len("… (1000000 bytes more)"))
}

func (e *Events) about(service types.NamespacedName) runtime.Object {
	if svc := e.source.Service(service); svc != nil {
		return svc
	}
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: e.nodeName, UID: types.UID(e.nodeName)}
}
