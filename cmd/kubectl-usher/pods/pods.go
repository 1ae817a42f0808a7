// Package pods finds the usher instances of a cluster's nodes by their Pods, and connects to them through the API
// server. No other port needs to be reachable.
//
//	kubectl usher ──▶ API server ──▶ kubelet ──▶ 127.0.0.1:10249 of the node
//	                  port-forward to the Pod of usher's DaemonSet
//
// It uses the permissions of the user: to list Pods and to port-forward to them, in the namespace of the DaemonSet.
// [fleet.ForbiddenError] names missing ones.
package pods

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/usherproxy/usher/cmd/internal/fleet"
	"github.com/usherproxy/usher/cmd/internal/show"
	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/kube"
	"github.com/usherproxy/usher/proxy/admin/client"
	"github.com/usherproxy/usher/proxy/portforward"
)

// Selector is the label of usher's Pods.
const Selector = "app.kubernetes.io/name=usher"

// Fleet finds the usher instances of a cluster. It implements fleet.Finder. Its methods are safe for concurrent use.
type Fleet struct {
	options fleet.Options
	port    netip.AddrPort
	server  string // URL of the API server
	api     *kube.Client
	tunnel  *portforward.Dialer

	mu    sync.Mutex
	known map[found]*client.Client
}

// found is a Pod at the time of Find.
type found struct {
	node, pod, uid string
	trouble        string // the reason why the instance cannot respond; "" if the Pod runs
}

// New returns the Fleet of a cluster. It sends no requests.
func New(o fleet.Options) (*Fleet, error) {
	_, port, _ := net.SplitHostPort(o.Address) // callers have checked its form
	number, err := net.LookupPort("tcp", port)
	if err != nil || number == 0 {
		return nil, fmt.Errorf("invalid value %q: port %q must be from 1 to 65535", o.Address, port)
	}
	rest, err := o.Cluster.RESTConfig()
	if err != nil {
		return nil, err
	}
	f := &Fleet{options: o, server: rest.Host, known: map[found]*client.Client{},
		port: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(number))}
	if f.api, err = kube.NewClient(rest); err != nil {
		return nil, err
	}
	silent := &logrus.Logger{} // its errors are returned with the answers
	if f.tunnel, err = portforward.New(rest, silent); err != nil {
		return nil, err
	}
	f.tunnel.IdleTime = idleTime
	return f, nil
}

// idleTime is the time for which an unused connection to a Pod stays open. While a client has an idle HTTP connection,
// the connection is in use; with many instances, fleet.Ask closes those.
const idleTime = time.Second

// Close closes the connections to all instances. Their clients must not be used afterwards.
func (f *Fleet) Close() { f.tunnel.Close() }

// pageSize is the number of Pods per list request, as in kubectl.
const pageSize = 500

// Find returns the current usher instances, one for each node, sorted by node. During a takeover, a node has several
// candidates: better selects one. Instances that it returned before keep their clients. An instance that does not run
// is included, and its client returns the reason. Find returns an error if there is no instance.
func (f *Fleet) Find(ctx context.Context) ([]fleet.Usher, error) {
	best := map[string]*corev1.Pod{}
	for next := ""; ; {
		pods, err := f.api.Pods(ctx, f.options.Namespace, metav1.ListOptions{LabelSelector: Selector, Limit: pageSize, Continue: next})
		if apierrors.IsForbidden(err) {
			return nil, &fleet.ForbiddenError{What: "list Pods", Namespace: f.options.Namespace, Err: err}
		}
		if err != nil {
			return nil, fmt.Errorf("find usher Pods in namespace %s of %s: %w", f.options.Namespace, f.server, err)
		}
		for i := range pods.Items {
			p := &pods.Items[i]
			node := nodeOf(p)
			if node == "" { // it is not scheduled, and serves no node
				continue
			}
			if old := best[node]; old == nil || better(p, old) {
				best[node] = p
			}
		}
		if next = pods.Continue; next == "" {
			break
		}
	}
	nodes := slices.Sorted(maps.Keys(best))
	if f.options.Node != "" {
		if best[f.options.Node] == nil {
			return nil, f.none(nodes)
		}
		nodes = []string{f.options.Node}
	}
	if len(nodes) == 0 {
		return nil, f.none(nil)
	}
	return f.ushers(nodes, best)
}

// none returns the error that Options.Node has no instance, with nodes, which have one. Without nodes, there is none at
// all.
func (f *Fleet) none(nodes []string) error {
	where := fmt.Sprintf("with the label %s in namespace %s of %s", Selector, f.options.Namespace, f.server)
	if len(nodes) == 0 {
		return fmt.Errorf("no usher instance found: there is no Pod %s; if usher runs in another namespace, set --usher-namespace", where)
	}
	return fmt.Errorf("usher is not running on node %s: no Pod there %s; nodes with one: %s", f.options.Node, where, show.Few(nodes))
}

// ushers returns the instances on nodes, whose Pods are in pods. It closes the clients of all others.
func (f *Fleet) ushers(nodes []string, pods map[string]*corev1.Pod) ([]fleet.Usher, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := map[found]*client.Client{}
	var all []fleet.Usher
	for _, node := range nodes {
		p := pods[node]
		at := found{node: node, pod: p.Namespace + "/" + p.Name, uid: string(p.UID)}
		if p.Status.Phase != corev1.PodRunning {
			at.trouble = fmt.Sprintf("Pod %s is not running: %s", at.pod, cmp.Or(p.Status.Reason, string(p.Status.Phase)))
		}
		c := f.known[at]
		if c == nil {
			var err error
			if c, err = f.client(at); err != nil {
				return nil, err
			}
		}
		now[at] = c
		all = append(all, fleet.Usher{Node: node, Pod: at.pod, Client: c})
	}
	for at, c := range f.known {
		if now[at] == nil {
			c.Close()
		}
	}
	f.known = now
	return all, nil
}

func (f *Fleet) client(at found) (*client.Client, error) {
	c, err := client.NewWithDial(f.port.String(), func(ctx context.Context, _ string) (net.Conn, error) {
		if at.trouble != "" {
			return nil, errors.New(at.trouble)
		}
		return f.tunnel.Dial(ctx, &config.Endpoint{Addr: f.port, Pod: at.pod})
	})
	if err == nil {
		c.Timeout = fleet.AnswerTime
	}
	return c, err
}

// nodeOf returns the node of a Pod, or "" if it has none. A Pod of a DaemonSet that is not scheduled yet names its node
// in its affinity.
func nodeOf(p *corev1.Pod) string {
	if p.Spec.NodeName != "" || p.Spec.Affinity == nil || p.Spec.Affinity.NodeAffinity == nil || p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return p.Spec.NodeName
	}
	for _, term := range p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if field.Key == metav1.ObjectNameField && len(field.Values) == 1 {
				return field.Values[0]
			}
		}
	}
	return ""
}

// better reports whether p is preferred to old on the same node. The criteria, in this order: it runs, is not being
// deleted, is ready, is newer.
func better(p, old *corev1.Pod) bool {
	rank := func(p *corev1.Pod) (n int) {
		if p.Status.Phase == corev1.PodRunning {
			n += 4
		}
		if p.DeletionTimestamp == nil {
			n += 2
		}
		if slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}) {
			n++
		}
		return n
	}
	if a, b := rank(p), rank(old); a != b {
		return a > b
	}
	return p.CreationTimestamp.After(old.CreationTimestamp.Time)
}
