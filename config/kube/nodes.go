package kube

import (
	"context"
	"maps"
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

// nodeLabels has the labels of every node, for the topology keys of Services. It watches the metadata of nodes once a
// Service needs labels. Such Services keep their previous state until all nodes are listed, or labelsTimeout has
// passed. Only the goroutine that computes uses it; meanwhile others may call of.
type nodeLabels struct {
	client metadata.Interface // nil: no labels are available
	log    logrus.FieldLogger
	moved  func() // called by other goroutines: Services that need labels must be recomputed

	store   cache.Store   // nil until a Service needs labels
	settled chan struct{} // closed when all nodes are listed, or after labelsTimeout
	all     sync.WaitGroup
}

// labelsTimeout limits how long such Services wait. Then they are served even if the API server does not answer, or
// does not let usher list nodes.
const labelsTimeout = 5 * time.Second

// watch watches the labels of nodes until ctx ends, if it does not already.
func (n *nodeLabels) watch(ctx context.Context) {
	if n.client == nil || n.store != nil {
		return
	}
	nodes := n.client.Resource(corev1.SchemeGroupVersion.WithResource("nodes"))
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return nodes.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return nodes.Watch(ctx, o)
		},
	}, &metav1.PartialObjectMetadata{}, 0, cache.Indexers{})
	// Neither fails: the informer does not run yet.
	_ = informer.SetTransform(onlyLabels)
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { n.moved() },
		UpdateFunc: func(old, now any) {
			if !maps.Equal(old.(*metav1.PartialObjectMetadata).Labels, now.(*metav1.PartialObjectMetadata).Labels) {
				n.moved()
			}
		},
		DeleteFunc: func(any) { n.moved() },
	})
	n.store, n.settled = informer.GetStore(), make(chan struct{})
	n.all.Go(func() { informer.RunWithContext(ctx) })
	n.all.Go(func() {
		waiting, cancel := context.WithTimeout(ctx, labelsTimeout)
		defer cancel()
		if !cache.WaitForCacheSync(waiting.Done(), informer.HasSynced) && ctx.Err() == nil {
			n.log.WithField("timeout", labelsTimeout).Warn(
				"The API server has not yet sent a list of Nodes; until it does, topology keys match no endpoint if usher does not know their node labels")
		}
		close(n.settled)
		n.moved()
	})
}

func onlyLabels(object any) (any, error) {
	if node, ok := object.(*metav1.PartialObjectMetadata); ok {
		node.ObjectMeta = metav1.ObjectMeta{Name: node.Name, ResourceVersion: node.ResourceVersion, Labels: node.Labels}
	}
	return object, nil
}

// ready reports whether the labels are listed, labelsTimeout has passed, or no Service needs labels.
func (n *nodeLabels) ready() bool {
	select {
	case <-n.settled:
		return true
	default:
		return n.store == nil
	}
}

// of returns the known labels of the node of that name.
func (n *nodeLabels) of(name string) map[string]string {
	if n.store == nil {
		return nil
	}
	object, ok, _ := n.store.GetByKey(name)
	if !ok {
		return nil
	}
	return object.(*metav1.PartialObjectMetadata).Labels
}

var _ translate.Nodes = (*nodeLabels)(nil).of
