package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/kube"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/fdstore"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/accesslog"
	"github.com/usherproxy/usher/proxy/admin"
	"github.com/usherproxy/usher/proxy/trace"
)

// Daemon is a proxy with its source, portal and servers, from start to stop.
type Daemon struct {
	config Config
	log    logrus.FieldLogger

	reach   atomic.Pointer[kube.Reach] // nil if Services come from files
	reports config.Reports             // problems of objects
	events  *kube.Events               // nil if the cluster gets no Events about ports that are not served

	lock          atomic.Pointer[handover.Lock] // nil while this process does not hold it
	taking        sync.Mutex                    // held while the lock is taken over
	handedOver    chan struct{}                 // closed when another usher process has taken over
	stopRequested chan struct{}                 // closed when a signal requests a stop after the handover

	proxy        *proxy.Proxy
	health       *admin.Health
	healthChecks *admin.HealthChecks
	checked      map[types.NamespacedName]bool // Services that healthChecks serves
	metrics      *admin.Metrics                // nil without HTTP servers
	accessLog    *accesslog.Log                // nil without one
	servers      servers

	// nodePorts are the networks whose addresses currently have node ports; empty means all.
	nodePorts []netip.Prefix
	// conntrack has the wanted connection tracking settings, for api.Status.Conntrack.
	conntrack map[string]int

	workers sync.WaitGroup // goroutines that Run waits for
}

// New returns a daemon that has not started and has opened nothing. The error names the invalid setting.
func New(c Config) (*Daemon, error) {
	if c.Log == nil {
		return nil, errors.New("daemon: Config.Log is required")
	}
	if err := c.Check(); err != nil {
		return nil, err
	}
	return &Daemon{config: c, log: c.Log, checked: map[types.NamespacedName]bool{}, handedOver: make(chan struct{}), stopRequested: make(chan struct{}), nodePorts: c.NodePorts.networks(nil)}, nil
}

// Run serves the source's Services until a signal arrives, ctx ends, or the source fails.
// Call it once. A nil channel means no signals.
//
// Any signal stops the daemon. os.Interrupt also removes the portal's rules; Config.RemoveRules extends that to every
// signal. A second signal resets the connections that are still open.
func (d *Daemon) Run(ctx context.Context, signals <-chan os.Signal) error {
	if err := d.checkKernel(); err != nil {
		return err
	}
	setGrowth(growthAtStart) // until tidyMemory has run
	d.meetManager()
	defer d.config.Manager.Wait(time.Second) // so that the manager gets all notifications
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	source, closeTunnel, err := d.newSource(ctx, signals) // first: without a source no portal is needed
	defer closeTunnel()
	switch {
	case errors.Is(err, errStopped):
		return nil
	case err != nil:
		return err
	}
	pt, err := d.openPortal(ctx)
	if err != nil {
		return err
	}
	d.setConntrack(pt)
	defer d.unlock()
	defer d.waitForWorkers(signals)
	defer cancel()
	if d.newProxy(pt); d.events != nil {
		d.proxy.OnProblem, d.healthChecks.OnProblem = d.recordProblem, d.recordHealthCheckProblem
		d.health.SetLeaving(d.hasNode()) // until the Node object is known
	}
	if reach := d.reach.Load(); reach != nil {
		d.health.APIServer = d.apiServer
		d.workers.Go(func() { d.warnWhileAway(ctx, reach) })
	}
	if err := d.openAccessLog(); err != nil {
		return err
	}
	if err := d.startServers(ctx); err != nil {
		return err
	}
	defer d.servers.close()
	for _, s := range d.otherServers() {
		if err := s.Start(ctx, d.proxy, d.config.TakeOver, d.log); err != nil {
			return err
		}
		defer s.Close() // after draining
	}

	traceCtx, endTrace := context.WithCancel(context.Background())
	defer endTrace() // after draining, so that the ends of all connections are recorded
	d.startWorkers(ctx, traceCtx)
	failed := make(chan error, 2)
	d.workers.Go(func() { failed <- source.Run(ctx, d.apply(ctx, failed)) })
	signaled, remove, err := d.await(ctx, failed, signals)
	cancel()
	d.stop(pt, remove, signals)
	if d.isHandedOver() && !signaled && fdstore.InPod() {
		// If this process exited now, the kubelet would restart it, and it would take over again. If the successor ends
		// first, as when a rollout is undone, that restart is wanted.
		select {
		case <-signals:
		case <-d.stopRequested:
		case <-handover.Unclaimed():
			d.log.Warn("The usher instance that took over has ended; exiting, so that the kubelet restarts this one")
		}
	}
	return err
}

// waitForWorkers returns when all workers have ended, or at another signal: a worker blocks if the reader of the trace
// or the access log has stopped reading.
func (d *Daemon) waitForWorkers(signals <-chan os.Signal) {
	ended := make(chan struct{})
	go func() {
		d.workers.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-signals:
	}
}

// otherServers returns the servers that run alongside the proxy and its HTTP servers.
func (d *Daemon) otherServers() (list []Server) {
	if d.config.SOCKS != nil {
		list = append(list, d.config.SOCKS)
	}
	if d.config.Names != nil {
		list = append(list, d.config.Names)
	}
	return list
}

// await returns when the daemon must stop. signaled reports whether a signal is the reason, and
// remove whether to remove the portal's rules. err is set if the daemon cannot continue.
func (d *Daemon) await(ctx context.Context, failed <-chan error, signals <-chan os.Signal) (signaled, remove bool, err error) {
	remove = d.config.Demo != nil
	select {
	case err = <-failed:
		if err != nil {
			err = fmt.Errorf("cannot continue: %w", err)
		}
	case <-ctx.Done():
	case <-d.handedOver:
		d.log.WithField("connections", d.proxy.Connections()).Info("Another usher instance has taken over; open connections move to it")
		d.servers.close()
		d.healthChecks.Close()
	case sig := <-signals:
		d.log.WithFields(logrus.Fields{"signal": sig.String(), "connections": d.proxy.Connections(), "drainTimeout": d.config.DrainTimeout.String()}).
			Info("Stopping: accepting no new connections, waiting for open ones to finish")
		d.notifyStopping()
		signaled, remove = true, remove || sig == os.Interrupt || d.config.RemoveRules
	}
	return signaled, remove, err
}

// healthTimeout is how long a change may wait before the proxy counts as unhealthy: twice the default sync period, as
// in kube-proxy.
const healthTimeout = time.Minute

// keptConnections is the number of failed, retried, slow or unanswered connections that the trace keeps in addition to
// the latest steps. One takes about 400 B.
const keptConnections = 4096

// newProxy creates the proxy behind pt, and its health checks.
func (d *Daemon) newProxy(pt portal.Portal) {
	o := &d.config.Proxy // DirectDial uses the portal that is set here
	o.Portal, o.Log, o.Trace = pt, d.log, trace.NewLog(d.config.TraceEvents)
	o.Trace.Keep(keptConnections)
	o.Slow = d.config.Slow
	o.Ports = d.config.Portal.ProxyPorts
	o.IsPod, o.NodeName, o.NodeAddress, o.LoadBalancers = d.isPod(), d.config.NodeName, d.config.Portal.NodeAddress, d.config.LoadBalancers
	if d.config.Netns != nil {
		o.Socket = d.config.Netns.Socket
	}
	for _, address := range []string{d.config.AdminAddress, d.config.HealthzAddress} {
		if at, err := net.ResolveTCPAddr("tcp", address); err == nil {
			o.Servers = append(o.Servers, at.AddrPort())
		}
	}
	d.proxy = proxy.New(*o)
	d.proxy.SetPodNetworks(d.config.PodNetworks)
	d.proxy.SetNodePortAddresses(d.nodePorts)
	d.health = &admin.Health{Sync: d.proxy.SyncStatus, Timeout: healthTimeout, Restarts: d.restarts()}
	d.healthChecks = &admin.HealthChecks{Serving: d.health.Serving, Log: d.log}
	d.healthChecks.SetNetworks(d.nodePorts)
}

// isPod returns a function that identifies this node's Pods by the interface of the route
// to them. It returns nil if no interface is configured, or routes cannot be read.
func (d *Daemon) isPod() func(netip.Addr) bool {
	interfaces := d.config.Portal.PodInterfaces
	if interfaces == "" {
		return nil
	}
	log := d.log.WithField("interfaces", string(interfaces))
	behind, err := kernel.Behind(interfaces)
	if err != nil {
		log.WithError(err).Warn("Cannot match this node's Pods by interface; no client counts as a local Pod")
		return nil
	}
	if !interfaces.Exist() {
		log.Warn("No matching Pod interface exists; no client counts as a local Pod until one appears")
	}
	return behind
}

// openAccessLog opens the access log, if one is configured.
func (d *Daemon) openAccessLog() (err error) {
	o := d.config.AccessLog
	if o.Path == "" {
		return nil
	}
	o.Log = d.log
	if d.accessLog, err = accesslog.New(d.proxy.Trace, o); err != nil {
		return fmt.Errorf("--access-log: %w", err)
	}
	return nil
}

// startWorkers starts the goroutines alongside the source. Readers of the trace stop when traceCtx ends.
func (d *Daemon) startWorkers(ctx, traceCtx context.Context) {
	d.workers.Go(func() { d.proxy.Run(ctx) })
	d.workers.Go(func() { wait.UntilWithContext(ctx, func(context.Context) { d.healthChecks.Retry() }, time.Second) })
	if d.config.NodePorts.Primary && !d.hasNode() {
		follow := func(context.Context) { d.setPrimaryAddresses(routedAddresses()) }
		follow(ctx)
		d.workers.Go(func() { wait.UntilWithContext(ctx, follow, d.config.Proxy.CheckInterval) })
	}
	if d.config.OnTrace != nil {
		steps := d.proxy.Trace.Reader(true)
		d.workers.Go(func() { d.config.OnTrace(traceCtx, steps) })
	}
	if d.accessLog != nil {
		d.workers.Go(func() { d.accessLog.Run(traceCtx) })
	}
}

// apply returns the function that a source calls with its Services. If the first call fails,
// that function sends the error to failed and ignores all further calls.
func (d *Daemon) apply(ctx context.Context, failed chan<- error) func([]config.Service) {
	first, dead := true, false
	return func(services []config.Service) {
		if dead {
			return
		}
		if !first {
			d.proxy.Apply(services)
			d.applied(services)
			if len(services) >= manyServices {
				tidyMemory()
			}
			return
		}
		started := time.Now()
		if err := d.begin(ctx, services); err != nil {
			failed <- err
			dead = true
			return
		}
		first = false
		d.applied(services)
		d.log.WithFields(logrus.Fields{"services": len(services), "portal": d.proxy.Portal.Mode(), "took": time.Since(started).Round(time.Millisecond).String()}).Info("Serving")
		d.logSourceAddresses()
		d.notifyReady(ctx, len(services))
		d.workers.Go(func() { d.warnOfFirewall(ctx, services) })
		if d.config.OnReady != nil {
			d.config.OnReady(Ready{Proxy: d.proxy, Services: services, AdminAddress: d.servers.adminAddress()})
		}
		tidyMemory()
	}
}

func (d *Daemon) logSourceAddresses() {
	fields := logrus.Fields{}
	for _, family := range portal.Families {
		text := "client addresses where replies return through this node"
		// SourceNotReady applies only until the first rule is installed.
		if source := d.proxy.Portal.Origin(netip.Addr{}, family.Any(), portal.Unknown).SourceAddress; source != 0 && source != portal.SourceNotReady {
			text = source.Text()
		}
		fields[strings.ToLower(family.String())] = text
	}
	d.log.WithFields(fields).Info("Source addresses that endpoints see")
}

// applied passes Services to the health checks and the DNS server once the proxy serves them: a
// client must not resolve a Service's name earlier.
func (d *Daemon) applied(services []config.Service) {
	var checked []config.Service // few have a health check node port
	for _, s := range services {
		switch {
		case s.HealthCheckNodePort != 0:
			d.checked[s.Name] = true
		case d.checked[s.Name]:
			delete(d.checked, s.Name)
		default:
			continue
		}
		checked = append(checked, s)
	}
	// Without a portal on the node, load balancers cannot reach its Services.
	if len(checked) > 0 && d.config.Netns == nil && d.proxy.Portal.Traits().Installs {
		d.healthChecks.Apply(checked)
	}
	if d.config.Names != nil {
		d.config.Names.Apply(services)
	}
}

// nodeChanged applies a change of this node's Node object.
func (d *Daemon) nodeChanged(node config.Node) {
	if d.config.Portal.PodInterfaces == "" {
		d.proxy.SetPodNetworks(append(slices.Clone(d.config.PodNetworks), node.PodCIDRs...))
	}
	d.proxy.SetServiceCIDRs(node.ServiceCIDRs)
	d.health.SetLeaving(node.Leaving)
	if d.hasNode() {
		d.setPrimaryAddresses(node.Addresses)
	}
}

// hasNode reports whether the source follows this node's Node object.
func (d *Daemon) hasNode() bool { return len(d.config.Manifests) == 0 && d.config.NodeName != "" }

// recordProblem sends the cluster an Event: a service port is not served, or is served again.
func (d *Daemon) recordProblem(id config.PortID, p *proxy.Problem) {
	if p == nil {
		d.events.Repaired(id.ServiceName(), "Served", fmt.Sprintf("Service port %s is served again", id))
		return
	}
	d.events.Warn(id.ServiceName(), string(p.Reason), fmt.Sprintf("Service port %s is not served: %v", id, p.Err))
}

func (d *Daemon) recordHealthCheckProblem(service types.NamespacedName, err error) {
	if err == nil {
		d.events.Repaired(service, "Served", "Health check node port is served again")
		return
	}
	d.events.Warn(service, "HealthCheckFailed", err.Error())
}

// stop stops the proxy, drains it, and removes the portal's installed rules if remove
// is set. A further signal ends the draining.
func (d *Daemon) stop(pt portal.Portal, remove bool, signals <-chan os.Signal) {
	d.taking.Lock() // afterwards, either take has finished, or it will see that ctx has ended
	d.health.SetStopping()
	d.taking.Unlock()
	// Only the process that holds the lock, and has not handed it over, may remove the rules. Withdraw and Stop wait
	// for a handover that is under way.
	remove = remove && (d.lock.Load() != nil || !d.proxy.Portal.Traits().Installs)
	if remove && d.config.RemoveRules {
		d.withdraw()
	}
	d.proxy.Stop()
	remove = remove && !d.isHandedOver()
	d.healthChecks.Close()
	if !remove {
		d.unlock() // a successor need not wait until connections have ended
	}
	grace, cancel := context.WithTimeout(context.Background(), d.config.DrainTimeout)
	defer cancel()
	go func() {
		if d.isHandedOver() {
			select {
			case <-signals: // requests the stop that the handover has already begun
				close(d.stopRequested)
			case <-grace.Done():
				return
			}
		}
		select {
		case <-signals:
			cancel()
		case <-grace.Done():
		}
	}()
	broken := d.proxy.Drain(grace)
	log := d.log.WithField("rules", d.leaves(remove))
	if remove {
		// Only after draining: open connections need the portal's rules.
		if err := pt.Remove(context.Background()); err != nil {
			d.log.WithError(err).Error("Some portal rules were not removed; run 'usher cleanup' to retry")
			log = d.log.WithField("rules", "partly removed")
		}
	}
	if broken > 0 {
		log.WithField("connections", broken).Warn("Stopped; reset the connections that were still open")
		return
	}
	log.Info("Stopped")
}

// handshake is how long redirected clients can still arrive after the rules are removed: a client retransmits its SYN
// after one second (RFC 6298).
const handshake = time.Second

// withdraw removes the redirecting rules, then waits for clients that were redirected before.
func (d *Daemon) withdraw() {
	did, err := d.proxy.Withdraw(context.Background())
	if err != nil {
		d.log.WithError(err).Error("Some redirecting rules were not removed before closing the listeners")
	}
	if did {
		time.Sleep(handshake)
	}
}

// leaves describes the state of the portal's rules after the daemon ends.
func (d *Daemon) leaves(remove bool) string {
	switch {
	case d.isHandedOver():
		return "owned by the instance that took over"
	case !d.proxy.Portal.Traits().Installs:
		return "none installed"
	case remove:
		return "removed"
	}
	return "kept for the next instance; 'usher cleanup' removes them"
}
