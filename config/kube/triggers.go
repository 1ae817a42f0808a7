package kube

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// triggers remember when the changes happened that led to changed endpoints: the
// EndpointSlice controller writes that into an annotation, for the latency that
// kube-proxy calls network programming.
type triggers struct {
	latest map[types.NamespacedName]time.Time // that was noted, for each Service
	fresh  []time.Time                        // noted since the last report
}

// note notes the newest trigger among slices, if it is newer than the last one.
func (t *triggers) note(service types.NamespacedName, slices []*discoveryv1.EndpointSlice) {
	newest := t.latest[service]
	for _, s := range slices {
		at, err := time.Parse(time.RFC3339Nano, s.Annotations[corev1.EndpointsLastChangeTriggerTime])
		if err == nil && at.After(newest) {
			newest = at
		}
	}
	if newest.After(t.latest[service]) {
		t.latest[service] = newest
		t.fresh = append(t.fresh, newest)
	}
}

func (t *triggers) forget(service types.NamespacedName) { delete(t.latest, service) }

// report tells how long ago the fresh ones were. What was found at the start
// happened some time before, and tells nothing of how fast usher is.
func (t *triggers) report(first bool, to func(time.Duration)) {
	if !first && to != nil {
		for _, at := range t.fresh {
			to(time.Since(at))
		}
	}
	t.fresh = t.fresh[:0]
}
