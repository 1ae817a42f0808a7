// Package pods finds the usher instances of a cluster's nodes by their Pods, and reaches them from anywhere that
// reaches the API server: nothing has to be opened on the nodes.
//
//	kubectl usher ──▶ API server ──▶ kubelet ──▶ 127.0.0.1:10249 of the node
//	                  port-forward to the Pod of usher's DaemonSet
//
// All is done with the rights of the user: to list Pods, and to port-forward to them, in the namespace of the
// DaemonSet. Which of them are missing is said by [fleet.ForbiddenError].
package pods

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/usherproxy/usher/cmd/internal/fleet"
	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/kube"
	"github.com/usherproxy/usher/proxy/admin/client"
	"github.com/usherproxy/usher/proxy/portforward"
)

// Selector is the label that usher's Pods have.
const Selector = "app.kubernetes.io/name=usher"

// Fleet is the ushers of a cluster. It implements fleet.Finder. Its methods may be called from any goroutine.
type Fleet struct {
	options fleet.Options
	port    netip.AddrPort
	server  string // URL of the API server
	api     *kube.Client
	tunnel  *portforward.Dialer

	mu    sync.Mutex
	known map[found]*client.Client
}

// found is a Pod as it was found.
type found struct {
	node, pod, uid string
	trouble        string // why nobody can answer there; "" if it runs
}

// New returns the Fleet of a cluster. Nothing is sent yet.
func New(o fleet.Options) (*Fleet, error) {
	_, port, err := net.SplitHostPort(o.Address)
	if err != nil {
		return nil, fmt.Errorf("invalid value %q: must be HOST:PORT, such as 127.0.0.1:10249", o.Address)
	}
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
	silent := logrus.New()
	silent.SetOutput(io.Discard) // what it would say is told with the answers
	if f.tunnel, err = portforward.New(rest, silent); err != nil {
		return nil, err
	}
	f.tunnel.IdleTime = idleTime
	return f, nil
}

// idleTime is how long a connection to a Pod stays of which nothing is wanted. While its client is open for
// another question something is, see fleet.Ask.
const idleTime = time.Second

// Close ends the connections to all ushers. Their clients are of no use any more.
func (f *Fleet) Close() { f.tunnel.Close() }

// pageSize is how many Pods are listed at once, as kubectl does.
const pageSize = 500

// Find returns the ushers that there are now, sorted by node, one for each node: where one takes over
// from another, the one that is ready. Those that were found before have the same clients. That there
// is none is an error; one that does not run is there, and its client says why it does not answer. Pods without a
// node are left out.
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
			if node == "" { // it waits to be scheduled, and is no usher of anything
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

// none says that nothing was found, and where there is something.
func (f *Fleet) none(nodes []string) error {
	where := fmt.Sprintf("with the label %s in namespace %s of %s", Selector, f.options.Namespace, f.server)
	switch n := len(nodes); {
	case n == 0:
		return fmt.Errorf("usher is not running in the cluster: no Pod %s", where)
	case n > few:
		return fmt.Errorf("usher is not running on node %s: no Pod there %s; %d other nodes have one", f.options.Node, where, n)
	}
	return fmt.Errorf("usher is not running on node %s: no Pod there %s; nodes with one: %s", f.options.Node, where, strings.Join(nodes, ", "))
}

// few is how many nodes are named one by one.
const few = 5

// ushers returns those of the Pods on nodes, and forgets the clients of all others.
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

// nodeOf returns the node of a Pod. One that waits for its node is not on it yet: that of a DaemonSet says
// where it is to be.
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

// better reports whether p is rather to be asked than old, on the same node.
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
