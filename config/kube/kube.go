package kube

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/translate"
)

// Options configure a Source. Client and Log are required.
type Options struct {
	Client *Client
	Log    logrus.FieldLogger

	// Metadata reads the labels of all nodes, once a Service has topology keys that need them. If it is nil, these
	// labels are unknown.
	Metadata metadata.Interface

	// NodeName is the name of the Node object of this node; "" if there is none.
	NodeName string
	// NodeLabels are labels of this node, regardless of its Node object.
	NodeLabels map[string]string
	// Options apply to every Service. New sets AllowLoopbackEndpoints and Nodes.
	translate.Options
	// Discovery requests config.Service.Discovery, and so includes Services that are not proxied: the source then
	// watches all Services and EndpointSlices.
	Discovery bool

	// MaxDelay is the maximum time after a change until the dirty Services are computed. They are computed earlier if
	// no other change follows for a short quiet time. Zero means DefaultMaxDelay.
	MaxDelay time.Duration
	// Resync is the interval for recomputing everything even without changes; 0 means never.
	Resync time.Duration

	// OnNode, if not nil, is called with the state of this node: once before the first Services are passed on, and
	// after each change.
	OnNode func(config.Node)
	// OnProgrammed, if not nil, is called for each change of endpoints that was passed on. took is the time since the
	// change of the Pod or Service that caused it.
	OnProgrammed func(took time.Duration)
	// OnProblems, if not nil, is called with the new problems of a Service's objects.
	OnProblems func(types.NamespacedName, []translate.Problem)

	// Reports, if not nil, gets the current problems.
	Reports *config.Reports
}

const (
	// DefaultMaxDelay is the default of Options.MaxDelay.
	DefaultMaxDelay = 50 * time.Millisecond
	quiet           = 10 * time.Millisecond
)

// Source watches an API server. It implements config.Source.
type Source struct {
	options  Options
	services cache.SharedIndexInformer
	slices   cache.SharedIndexInformer
	nodes    cache.SharedIndexInformer // nil without a NodeName

	store *translate.Store

	mu      sync.Mutex
	cidrs   []netip.Prefix // the service CIDRs, which mu protects
	lookNow atomic.Bool    // the Node may have changed

	// Used only by the goroutine that computes.
	node     *config.Node // nil before the first read
	labels   nodeLabels
	triggers triggers
	problems map[types.NamespacedName]map[string]int // the highest logged count for each gist
	words    config.Words                            // limits messages about problems
}

// byService is the index of EndpointSlices by the Service they belong to.
const byService = "service"

// New returns a Source. It sends no request yet.
func New(options Options) (*Source, error) {
	if options.MaxDelay <= 0 {
		options.MaxDelay = DefaultMaxDelay
	}
	s := &Source{
		options:  options,
		problems: map[types.NamespacedName]map[string]int{},
		words:    config.Words{LeftOut: leftOut(options.Log, "Messages")},

		triggers: triggers{latest: map[types.NamespacedName]time.Time{}},
	}
	options.AllowLoopbackEndpoints, options.Nodes = false, s.labels.of
	s.store = translate.NewStore(translate.StoreOptions{
		Options: options.Options, Discovery: options.Discovery, Names: s.names, Service: s.Service, Slices: s.slicesOf,
	})
	s.lookNow.Store(true)
	s.labels = nodeLabels{client: options.Metadata, log: options.Log, moved: s.store.MarkLabels}
	of, err := selectorsFor(options.ServiceProxyName, options.Discovery)
	if err != nil {
		return nil, err
	}
	s.services = s.informer(options.Client.core, "services", &corev1.Service{}, of.serviceLabels, of.serviceFields)
	s.slices = s.informer(options.Client.discovery, "endpointslices", &discoveryv1.EndpointSlice{}, of.sliceLabels, "")
	err = errors.Join(
		s.slices.AddIndexers(cache.Indexers{byService: func(object any) ([]string, error) {
			name, ok := translate.ServiceOf(object.(*discoveryv1.EndpointSlice))
			if !ok {
				return nil, nil
			}
			return []string{name.String()}, nil
		}}),
		s.watch(s.services, s.watchService),
		s.watch(s.slices, s.watchSlice),
	)
	if options.NodeName != "" {
		s.nodes = s.informer(options.Client.core, "nodes", &corev1.Node{}, "", fields.OneTermEqualSelector(metav1.ObjectNameField, options.NodeName).String())
		err = errors.Join(err, s.watch(s.nodes, func(any) { s.markNode() }))
	}
	return s, err
}

// notHeadless is a field selector for Services.
var notHeadless = fields.OneTermNotEqualSelector("spec.clusterIP", corev1.ClusterIPNone).String()

// selectors select the objects that the API server sends.
type selectors struct{ serviceLabels, serviceFields, sliceLabels string }

// selectorsFor returns kube-proxy's selectors (cmd/kube-proxy/app/server.go, v1.37): Services that are not headless and
// name this proxy (or none, if proxyName is ""), and their slices. Discovery needs all objects.
func selectorsFor(proxyName string, discovery bool) (s selectors, err error) {
	if discovery {
		return s, nil
	}
	s = selectors{"!" + translate.LabelServiceProxyName, notHeadless, "!" + corev1.IsHeadlessService}
	switch proxyName {
	case "":
	case translate.AnyProxy:
		s.serviceLabels = ""
	default:
		mine, err := labels.NewRequirement(translate.LabelServiceProxyName, selection.Equals, []string{proxyName})
		if err != nil {
			return s, fmt.Errorf("service proxy name %q: %w", proxyName, err)
		}
		s.serviceLabels = mine.String()
	}
	return s, nil
}

// informer returns an informer, not yet running, of a resource's objects that match the selectors, in all namespaces.
// It stores them trimmed.
//
// Before Kubernetes 1.31, API servers refuse the field selector for Services. Then headless ones are listed, too.
func (s *Source) informer(client rest.Interface, resource string, object runtime.Object, labelSelector, fieldSelector string) cache.SharedIndexInformer {
	var refused atomic.Bool
	source := cache.NewFilteredListWatchFromClient(client, resource, metav1.NamespaceAll, func(o *metav1.ListOptions) {
		if o.LabelSelector = labelSelector; !refused.Load() {
			o.FieldSelector = fieldSelector
		}
	})
	informer := cache.NewSharedIndexInformer(source, object, s.options.Resync, cache.Indexers{})
	_ = informer.SetTransform(trim) // this and SetWatchErrorHandlerWithContext fail only if the informer runs already
	_ = informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		if apierrors.IsBadRequest(err) && fieldSelector == notHeadless {
			refused.Store(true)
			return
		}
		cache.DefaultWatchErrorHandler(ctx, r, err)
	})
	return informer
}

// watch calls mark with each object that informer adds, changes (the old and the new one) or deletes.
func (s *Source) watch(informer cache.SharedIndexInformer, mark func(object any)) error {
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: mark,
		UpdateFunc: func(old, object any) {
			mark(old)
			mark(object)
		},
		DeleteFunc: func(object any) {
			if missed, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = missed.Obj
			}
			mark(object)
		},
	})
	return err
}

// watchService and watchSlice are called with each added, changed or deleted object.
func (s *Source) watchService(object any) {
	svc := object.(*corev1.Service)
	s.store.Mark(types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name})
}

func (s *Source) watchSlice(object any) {
	if name, ok := translate.ServiceOf(object.(*discoveryv1.EndpointSlice)); ok {
		s.store.Mark(name)
	}
}

// markNode records that the state of this node may have changed.
func (s *Source) markNode() {
	s.lookNow.Store(true)
	s.store.Mark()
}

// Run implements config.Source. It ends only when ctx does: it retries if the API server is unreachable or refuses.
func (s *Source) Run(ctx context.Context, apply func([]config.Service)) error {
	var informers sync.WaitGroup
	defer informers.Wait()
	synced := []cache.InformerSynced{s.services.HasSynced, s.slices.HasSynced}
	informers.Go(func() { s.services.RunWithContext(ctx) })
	informers.Go(func() { s.slices.RunWithContext(ctx) })
	if s.nodes != nil {
		informers.Go(func() { s.nodes.RunWithContext(ctx) })
		synced = append(synced, s.nodes.HasSynced)
		if s.options.OnNode != nil {
			informers.Go(func() { s.followCIDRs(ctx) })
		}
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil
	}
	defer s.labels.all.Wait()
	s.store.MarkAll()
	if s.store.Prepare(s.store.Take()) {
		s.labels.watch(ctx)
	}
	if s.labels.store != nil { // the first call must have all Services
		select {
		case <-ctx.Done():
			return nil
		case <-s.labels.settled:
		}
	}
	s.store.MarkAll()
	var last time.Time
	for first := true; ; first = false {
		if !first && !s.waitQuiet(ctx, last) {
			return nil
		}
		changed := s.compute(ctx)
		if first || len(changed) > 0 {
			apply(changed)
			s.triggers.report(first, s.options.OnProgrammed)
		}
		last = time.Now()
		if ctx.Err() != nil {
			return nil
		}
	}
}

// alone is the quiet time after the first change that follows a pause. Other changes in the same packet from the API
// server are computed together with that one.
const alone = time.Millisecond

// waitQuiet waits until something is dirty, and then until there is no change for the quiet time, or MaxDelay has
// passed. The quiet time is alone if the last computation was more than MaxDelay ago, and otherwise quiet. It returns
// false if ctx has ended.
func (s *Source) waitQuiet(ctx context.Context, last time.Time) bool {
	select {
	case <-ctx.Done():
		return false
	case <-s.store.Woken:
	}
	latest := time.NewTimer(s.options.MaxDelay)
	defer latest.Stop()
	settled := time.NewTimer(quiet)
	defer settled.Stop()
	if time.Since(last) > s.options.MaxDelay {
		settled.Reset(alone)
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-latest.C:
			return true
		case <-settled.C:
			return true
		case <-s.store.Woken:
			settled.Reset(quiet)
		}
	}
}

// lookAtNode reads this node's object. If the state of the node has changed, it calls OnNode. If the zone has changed,
// it marks all Services.
func (s *Source) lookAtNode() {
	now := config.Node{Name: s.options.NodeName, Leaving: s.nodes != nil}
	before := s.node
	if s.nodes != nil {
		object, ok, _ := s.nodes.GetStore().GetByKey(s.options.NodeName)
		switch {
		case ok:
			now = nodeOf(object.(*corev1.Node))
			now.ServiceCIDRs = s.knownCIDRs()
		case before != nil:
			now = *before // the last known state, but load balancers must not use the node
			now.Leaving = true
		default:
			s.options.Log.WithField("node", s.options.NodeName).Warn("No Node object has this name; /healthz returns 503 until one exists; check --node-name")
		}
	}
	now.Labels = s.options.NodeLabels
	if before != nil && reflect.DeepEqual(*before, now) {
		return
	}
	s.node = &now
	s.store.Node = now
	if s.options.OnNode != nil {
		s.options.OnNode(now)
	}
	if before == nil || before.Zone != now.Zone {
		s.store.MarkAll()
	}
}

// Service returns a Service's object, or nil if there is none.
func (s *Source) Service(name types.NamespacedName) *corev1.Service {
	object, ok, _ := s.services.GetStore().GetByKey(name.String())
	if !ok {
		return nil
	}
	return object.(*corev1.Service)
}

func (s *Source) names() (all []types.NamespacedName) {
	for _, object := range s.services.GetStore().List() {
		svc := object.(*corev1.Service)
		all = append(all, types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name})
	}
	return all
}
