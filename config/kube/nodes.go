package kube

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/usherproxy/usher/config/translate"
)

// nodeLabels has, for every node, the labels that Services need for their topology keys. While a Service needs any, the
// metadata of nodes are watched, and only the needed labels are stored. A Service keeps its previous state until its
// labels are known or labelsTimeout has passed. Only the goroutine that computes uses nodeLabels.
type nodeLabels struct {
	client metadata.Interface // nil: no labels are available
	log    logrus.FieldLogger
	moved  func() // called by other goroutines: Services that need labels must be recomputed

	watch *labelWatch // nil while no Service needs labels
	all   sync.WaitGroup
}

// labelWatch is a watch of nodes for some of their labels.
type labelWatch struct {
	keys    map[string]bool
	store   cache.Store
	listed  func() bool // store has all nodes
	before  cache.Store // the store of the previous watch until this one's has all nodes; then nil
	stop    context.CancelFunc
	began   time.Time
	settled chan struct{} // closed when all nodes are listed, or after labelsTimeout
	due     bool          // a check is scheduled for when another watch may begin
}

const (
	// labelsTimeout is the maximum time that Services are held: they are served even if the API server does not let
	// usher list nodes, or does not answer.
	labelsTimeout = 5 * time.Second
	// labelsPause is the minimum time between the starts of two watches: authors of Services can start and stop
	// requesting labels as often as they like.
	labelsPause = 10 * time.Second
)

// follow watches the requested labels.
func (n *nodeLabels) follow(ctx context.Context, asked map[string]bool) {
	if n.client == nil {
		return
	}
	w := n.watch
	if w != nil && w.before != nil && w.listed() {
		w.before = nil
	}
	switch {
	case w != nil && len(asked) > 0 && w.has(slices.Collect(maps.Keys(asked))):
	case w != nil && time.Since(w.began) < labelsPause: // also without labels: the next Service that needs some may come at once
		if !w.due {
			w.due = true
			time.AfterFunc(time.Until(w.began.Add(labelsPause)), n.moved)
		}
	case len(asked) == 0:
		n.end()
	default:
		var before cache.Store
		if w != nil {
			if before = w.before; before == nil {
				before = w.store
			}
		}
		n.end()
		n.begin(ctx, asked, before)
	}
}

func (w *labelWatch) has(keys []string) bool {
	return !slices.ContainsFunc(keys, func(key string) bool { return !w.keys[key] })
}

// end ends the watch and forgets its nodes.
func (n *nodeLabels) end() {
	if n.watch != nil {
		n.watch.stop()
		n.watch = nil
	}
}

// begin begins a watch for these labels. Until all nodes are listed, it uses those in before, if that is not nil.
func (n *nodeLabels) begin(ctx context.Context, keys map[string]bool, before cache.Store) {
	ctx, stop := context.WithCancel(ctx)
	nodes := n.client.Resource(corev1.SchemeGroupVersion.WithResource("nodes"))
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return nodes.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return nodes.Watch(ctx, o)
		},
	}, &metav1.PartialObjectMetadata{}, 0, cache.Indexers{})
	// Neither fails: the informer does not run yet.
	_ = informer.SetTransform(func(object any) (any, error) { return onlyLabels(object, keys), nil })
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { n.moved() },
		UpdateFunc: func(old, now any) {
			if !reflect.DeepEqual(old.(*metav1.PartialObjectMetadata).Labels, now.(*metav1.PartialObjectMetadata).Labels) {
				n.moved()
			}
		},
		DeleteFunc: func(any) { n.moved() },
	})
	w := &labelWatch{keys: keys, store: informer.GetStore(), listed: informer.HasSynced, before: before, stop: stop, began: time.Now(), settled: make(chan struct{})}
	n.watch = w
	n.all.Go(func() { informer.RunWithContext(ctx) })
	n.all.Go(func() {
		waiting, cancel := context.WithTimeout(ctx, labelsTimeout)
		defer cancel()
		if !cache.WaitForCacheSync(waiting.Done(), informer.HasSynced) && ctx.Err() == nil {
			n.log.WithFields(logrus.Fields{"labels": slices.Sorted(maps.Keys(keys)), "timeout": labelsTimeout}).Warn(
				"The API server has not yet sent a list of Nodes; until it does, topology keys match no endpoint if usher does not know their node labels")
		}
		close(w.settled)
		n.moved()
	})
}

// onlyLabels returns a node with only its name and the requested labels.
func onlyLabels(object any, keys map[string]bool) any {
	node, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return object
	}
	kept := metav1.ObjectMeta{Name: node.Name, ResourceVersion: node.ResourceVersion}
	for key, value := range node.Labels {
		if keys[key] {
			metav1.SetMetaDataLabel(&kept, key, value)
		}
	}
	return &metav1.PartialObjectMetadata{TypeMeta: node.TypeMeta, ObjectMeta: kept}
}

// ready reports whether these labels are known, or no longer waited for.
func (n *nodeLabels) ready(keys []string) bool {
	return n.watch == nil || n.watch.has(keys) && !n.watch.waits()
}

// waits reports whether the nodes are still being listed.
func (w *labelWatch) waits() bool {
	select {
	case <-w.settled:
		return false
	default:
		return true
	}
}

// of returns the known labels of the node of that name.
func (n *nodeLabels) of(name string) map[string]string {
	if n.watch == nil {
		return nil
	}
	object, ok, _ := n.watch.store.GetByKey(name)
	if before := n.watch.before; !ok && before != nil {
		object, ok, _ = before.GetByKey(name)
	}
	if !ok {
		return nil
	}
	return object.(*metav1.PartialObjectMetadata).Labels
}

var _ translate.Nodes = (*nodeLabels)(nil).of
