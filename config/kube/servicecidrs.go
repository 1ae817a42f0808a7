package kube

import (
	"context"
	"net/netip"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"

	"github.com/usherproxy/usher/config/translate"
)

// cidrsPause is the delay before usher tries again to list ServiceCIDRs. API servers before Kubernetes 1.33 do not have
// them, and usher may lack the permission to list them.
const cidrsPause = 10 * time.Minute

// followCIDRs watches the ServiceCIDRs until ctx ends. Nothing waits for them, and usher serves all Services without
// them.
func (s *Source) followCIDRs(ctx context.Context) {
	logged := false
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		err := s.watchCIDRs(ctx)
		// Keep them: an API server may answer so while it starts.
		if apierrors.IsForbidden(err) && s.knownCIDRs() != nil {
			return
		}
		if err != nil && !logged {
			s.options.Log.WithError(err).Info("Service CIDRs unknown; packets to their unused addresses are not rejected")
			logged = true
		}
		s.setCIDRs(nil)
	}, cidrsPause)
}

// watchCIDRs watches the ServiceCIDRs until ctx ends, or the API server refuses to list or watch them. It returns the
// refusal, or nil.
func (s *Source) watchCIDRs(ctx context.Context) (refused error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	informer := s.informer(s.options.Client.networking, "servicecidrs", &networkingv1.ServiceCIDR{}, "", "")
	// Neither fails: the informer does not run yet.
	_ = informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			refused = err
			stop()
			return
		}
		cache.DefaultWatchErrorHandler(ctx, r, err)
	})
	_ = s.watch(informer, func(any) { s.setCIDRs(cidrsOf(informer.GetStore().List())) })
	informer.RunWithContext(ctx)
	return refused
}

// setCIDRs records the service CIDRs, which OnNode passes on with the state of this node.
func (s *Source) setCIDRs(cidrs []netip.Prefix) {
	s.mu.Lock()
	s.cidrs = cidrs
	s.mu.Unlock()
	s.markNode()
}

func (s *Source) knownCIDRs() []netip.Prefix {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cidrs
}

func cidrsOf(objects []any) []netip.Prefix {
	var all []string
	for _, object := range objects {
		all = append(all, object.(*networkingv1.ServiceCIDR).Spec.CIDRs...)
	}
	return translate.ServiceCIDRs(all)
}
