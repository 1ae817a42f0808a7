package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/kube"
	"github.com/usherproxy/usher/config/manifest"
	"github.com/usherproxy/usher/config/translate"
	"github.com/usherproxy/usher/proxy/admin"
)

// newSource returns the source of Services, and a function that closes the tunnel to their endpoints. The source calls
// the daemon's callbacks only while it runs.
func (d *Daemon) newSource(ctx context.Context, signals <-chan os.Signal) (source config.Source, closeTunnel func(), err error) {
	c, closeTunnel := &d.config, func() {}
	if len(c.Manifests) > 0 {
		source, err = unlessStopped(ctx, signals, func() (config.Source, error) {
			return c.files(c.Names != nil, &d.reports, func(cidrs []netip.Prefix) { d.proxy.SetServiceCIDRs(cidrs) })
		})
		return source, closeTunnel, err
	}
	client, reach, err := c.connect()
	if err != nil {
		return nil, closeTunnel, err
	}
	d.reach.Store(reach)
	if c.Tunnel != nil {
		rest, err := c.Cluster.RESTConfig()
		if err != nil {
			return nil, closeTunnel, err
		}
		if closeTunnel, err = c.Tunnel.Open(rest, &c.Proxy, d.log); err != nil {
			return nil, func() {}, err
		}
	}
	source, err = d.apiSource(ctx, client)
	return source, closeTunnel, err
}

// apiSource returns the source that watches an API server.
func (d *Daemon) apiSource(ctx context.Context, client *kube.Client) (config.Source, error) {
	c := &d.config
	o := kube.Options{Client: client, Metadata: client.Metadata, Log: d.log, NodeName: c.NodeName, NodeLabels: c.NodeLabels,
		Options: c.translation(), Discovery: c.Names != nil, MaxDelay: c.MaxDelay, Resync: c.Resync}
	if c.NodeName == "" && len(c.NodeLabels) == 0 { // no topology key can match, so other nodes' labels are not needed
		o.Metadata = nil
	}
	if c.Netns != nil {
		return kube.New(o) // it serves one command, not a node: the cluster gets no Events
	}
	o.OnNode, o.OnProgrammed, o.Reports = d.nodeChanged, d.programmed, &d.reports
	o.OnProblems = func(service types.NamespacedName, problems []translate.Problem) {
		for _, p := range problems {
			d.events.Warn(service, "PartNotServed", p.Error())
		}
	}
	source, err := kube.New(o)
	if err != nil {
		return nil, err
	}
	d.events = kube.NewEvents(ctx, client, source, c.NodeName)
	return source, nil
}

// errStopped means that the daemon was stopped before it had a source.
var errStopped = errors.New("stopped")

// unlessStopped returns the result of open, or errStopped if a signal arrives or ctx ends first.
// open may then continue until the process exits, since standard input may never end.
func unlessStopped(ctx context.Context, signals <-chan os.Signal, open func() (config.Source, error)) (config.Source, error) {
	var source config.Source
	opened := make(chan error, 1)
	go func() {
		var err error
		source, err = open()
		opened <- err
	}()
	select {
	case err := <-opened:
		return source, err
	case <-signals:
	case <-ctx.Done():
	}
	return nil, errStopped
}

// files returns the source that reads manifests.
func (c *Config) files(discovery bool, reports *config.Reports, onCIDRs func([]netip.Prefix)) (config.Source, error) {
	input := c.Input
	if input == nil {
		input = os.Stdin
	}
	return manifest.New(manifest.Options{Paths: c.Manifests, Input: input, ServiceCIDRs: c.ServiceCIDRs, NodePorts: c.ServiceNodePorts, LoadBalancerCIDRs: c.LoadBalancerCIDRs, OnServiceCIDRs: onCIDRs,
		Node: config.Node{Name: c.NodeName, Labels: c.NodeLabels}, Options: c.translation(), Discovery: discovery, Reports: reports, Log: c.Log})
}

// translation returns the options that apply to every Service.
func (c *Config) translation() translate.Options {
	o := c.Options
	o.NoAccessLog, o.NodeAddress = c.AccessLog.Path == "", c.Portal.NodeAddress
	o.Policy.AccessLog = o.Policy.AccessLog && !o.NoAccessLog
	return o
}

func (c *Config) connect() (*kube.Client, *kube.Reach, error) {
	c.Cluster.UserAgent = "usher/" + c.Version
	if c.Netns == nil {
		c.Cluster.Mark = c.Portal.Mark
	}
	client, reach, err := c.Cluster.Connect()
	if err != nil {
		return nil, nil, c.noSource(err)
	}
	return client, reach, nil
}

// noSource wraps err, the reason why there is no source, with a hint on how to set one unless a kubeconfig is set.
func (c *Config) noSource(err error) error {
	if c.Cluster.Kubeconfig != "" {
		return err
	}
	return fmt.Errorf("%w; set --manifests to read Services from files, or --kubeconfig to read them from a cluster", err)
}

// KubeNamespace returns the default Kubernetes namespace: that of the kubeconfig's
// context, or "default" with manifests.
func (c *Config) KubeNamespace() (string, error) {
	if len(c.Manifests) > 0 {
		return "default", nil
	}
	namespace, err := c.Cluster.Namespace()
	if err != nil {
		return "", c.noSource(err)
	}
	return namespace, nil
}

// APIServer reports whether the API server sends its current state. known is false if Services
// come from files, or the daemon has not contacted it yet. Safe for concurrent use.
func (d *Daemon) APIServer() (status kube.ReachStatus, known bool) {
	reach := d.reach.Load()
	if reach == nil {
		return kube.ReachStatus{}, false
	}
	return reach.Status(), true
}

// apiServer returns the status of APIServer for the answers to health checks.
func (d *Daemon) apiServer() admin.APIServerStatus {
	now, _ := d.APIServer()
	out := admin.APIServerStatus{Connected: now.Connected, Since: now.Since, Reason: string(now.Reason), Skew: now.Skew}
	if now.Err != nil {
		out.Error, out.Remedy = now.Err.Error(), now.Reason.Remedy()
	}
	return out
}

// programmed adds to the metrics the time from a change in the cluster to its application.
func (d *Daemon) programmed(took time.Duration) {
	if d.metrics != nil {
		d.metrics.Programmed(took)
	}
}

// warnWhileAway logs when the API server stops sending its state, with the reason, and when
// it recovers, until ctx ends. A retry that fails for the same reason is not logged.
func (d *Daemon) warnWhileAway(ctx context.Context, reach *kube.Reach) {
	var logged kube.Reason
	wait.UntilWithContext(ctx, func(context.Context) {
		now := reach.Status()
		if now.Reason == logged {
			return
		}
		logged = now.Reason
		if now.Err == nil {
			d.log.Info("API server sends changes again")
			return
		}
		log := d.log.WithError(now.Err).WithField("reason", now.Reason)
		if d.proxy.SyncStatus().LastQueued.IsZero() {
			log.Warn("No updates from the API server; serving no Services yet")
			return
		}
		log.Warn("No updates from the API server; serving last known state")
	}, time.Second)
}

// readTimeout bounds the wait for the API server to list all Services.
const readTimeout = 30 * time.Second

// Services returns all current Services with their discovery information, without serving them. It uses only the
// settings of c that select the source.
func (c Config) Services(ctx context.Context) ([]config.Service, error) {
	reach := &kube.Reach{}
	var source config.Source
	var err error
	if len(c.Manifests) > 0 {
		source, err = c.files(true, nil, nil)
	} else {
		var client *kube.Client
		if client, reach, err = c.connect(); err != nil {
			return nil, err
		}
		source, err = kube.New(kube.Options{Client: client, Discovery: true, Log: c.Log})
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	denied := false
	go wait.UntilWithContext(ctx, func(context.Context) {
		before := denied
		if denied = reach.Status().Reason.Denied(); before && denied {
			cancel()
		}
	}, 2*time.Second)
	var services []config.Service
	complete := false
	err = source.Run(ctx, func(all []config.Service) {
		if !complete {
			services, complete = all, true
		}
		cancel()
	})
	if err != nil || complete {
		return services, err
	}
	why := reach.Status()
	if why.Reason.Denied() {
		return nil, fmt.Errorf("%w; %s", why.Err, why.Reason.Remedy())
	}
	err = fmt.Errorf("list Services: no response from the API server within %s; check --server or --kubeconfig", readTimeout)
	if why.Err != nil {
		err = fmt.Errorf("%w: %w", err, why.Err)
	}
	return nil, err
}
