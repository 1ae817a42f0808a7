package kube

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
)

// Events writes Events, so that people who look at a Service with kubectl see
// why it is not served on a node. client-go counts repetitions instead of
// writing each, and bounds how many it holds.
type Events struct {
	broadcaster events.EventBroadcaster
	recorder    events.EventRecorder
	source      *Source
	nodeName    string
}

// NewEvents returns Events that are written by client until ctx ends. source
// knows the objects that they are about.
func NewEvents(ctx context.Context, client kubernetes.Interface, source *Source, nodeName string) (*Events, error) {
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, broadcaster.Shutdown)
	return &Events{
		broadcaster: broadcaster,
		recorder:    broadcaster.NewRecorder(scheme.Scheme, "usher"),
		source:      source,
		nodeName:    nodeName,
	}, nil
}

// action is what usher was doing, in the words of the Events API.
const action = "Serve"

// Warn writes a warning about a Service; about this Node if the Service is not
// known. reason is one word in CamelCase.
func (e *Events) Warn(service types.NamespacedName, reason, message string) {
	e.recorder.Eventf(e.about(service), nil, corev1.EventTypeWarning, reason, action, "%s", e.onNode(message))
}

// Tell writes that something about a Service is well again.
func (e *Events) Tell(service types.NamespacedName, reason, message string) {
	e.recorder.Eventf(e.about(service), nil, corev1.EventTypeNormal, reason, action, "%s", e.onNode(message))
}

// maxNote is how long the API lets the note of an Event be, in bytes (API
// reference of events.k8s.io/v1 Event, field note).
const maxNote = 1024

// onNode adds the node's name: every node has an usher, and their Events are
// about the same Service.
func (e *Events) onNode(message string) string {
	if e.nodeName != "" {
		message = "On node " + e.nodeName + ": " + message
	}
	return message[:min(len(message), maxNote)]
}

func (e *Events) about(service types.NamespacedName) runtime.Object {
	if svc := e.source.Service(service); svc != nil {
		return svc
	}
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: e.nodeName, UID: types.UID(e.nodeName)}
}
