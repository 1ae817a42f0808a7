package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/kube"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/accesslog"
	"github.com/usherproxy/usher/proxy/admin"
	"github.com/usherproxy/usher/proxy/dns"
	"github.com/usherproxy/usher/proxy/trace"
)

// server is a proxy with all that belongs to it, from start to stop.
type server struct {
	flags    *proxyFlags
	admin    *adminFlags // nil for no HTTP servers
	log      *logrus.Logger
	out      io.Writer
	trace    bool              // print it to out
	settings map[string]string // what /configz tells
	access   accessFlags
	socks    socksFlags

	podNetworks []netip.Prefix // besides those of the Node object, or behind interfaces
	noNode      bool           // there is no Node object

	// inside is the portal of a network namespace in which a command runs; nil
	// opens one for this node. With it signals are the command's, and the server
	// ends with ctx.
	inside portal.Portal

	names   *dns.Server    // answers for the names of Services; nil if nobody does
	namesAt netip.AddrPort // where
	// listenNames opens both sockets for that, UDP and TCP; nil does in this
	// process's network namespace.
	listenNames func(at netip.AddrPort) (net.PacketConn, net.Listener, error)

	// started is called once what the source has first is served; nil prints
	// the table.
	started func(p *proxy.Proxy)
	// demo is for a demo, which has no successor: the portal's rules go, whatever
	// ended the server; and an usher that is there already is left alone.
	demo bool
	// wrapAdmin adds to what is served on the admin address; nil adds nothing.
	wrapAdmin func(http.Handler) http.Handler

	// takeOver says to take over from an usher that is there already.
	takeOver bool

	// What a source that watches an API server adds.
	reach                atomic.Pointer[kube.Reach] // nil if Services come from files
	onProblem            func(config.PortID, *proxy.Problem)
	onHealthCheckProblem func(types.NamespacedName, error)

	proxy        *proxy.Proxy
	health       *admin.Health
	healthChecks *admin.HealthChecks
	metrics      *admin.Metrics // nil without HTTP servers
	accessLog    *accesslog.Log // nil without one

	lock       atomic.Pointer[handover.Lock] // nil without one
	handedOver chan struct{}                 // closed when another usher has taken over
	told       chan struct{}                 // closed when, after that, a signal has said to stop

	serversMu   sync.Mutex
	servers     []*admin.Server
	serversOver bool // they have been closed
}

// serve serves what the source has until a signal comes, ctx ends, or the
// source fails.
func (s *server) serve(ctx context.Context, newSource func(context.Context, *server) (config.Source, error)) error {
	signals := make(chan os.Signal, 2)
	if s.inside == nil {
		signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
		defer signal.Stop(signals)
	}
	// Whoever reads the trace may go away (usher run --trace | head).
	signal.Ignore(syscall.SIGPIPE)
	hurry()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	source, err := newSource(ctx, s) // first: without one there is nothing to look for a portal for
	if err != nil {
		return err
	}
	lock, pt, err := s.openPortal(ctx)
	if err != nil {
		return err
	}
	s.lock.Store(lock)
	defer s.unlock()
	s.handedOver, s.told = make(chan struct{}), make(chan struct{})
	s.proxy = s.flags.newProxy(pt, s.log)
	s.proxy.SetPodNetworks(s.podNetworks)
	s.health = &admin.Health{Sync: s.proxy.SyncStatus, Timeout: healthTimeout}
	s.healthChecks = &admin.HealthChecks{Serving: s.health.Serving, Log: s.log}
	s.healthChecks.SetNetworks(s.flags.nodePorts.networks)
	s.proxy.OnProblem = s.onProblem
	s.healthChecks.OnProblem = s.onHealthCheckProblem
	if s.reach.Load() != nil {
		s.health.APIServer = s.apiServer
	}
	if s.accessLog, err = s.access.open(s.proxy.Trace, s.out, s.log); err != nil {
		return err
	}
	if s.admin != nil {
		if err := s.startServers(ctx); err != nil {
			return err
		}
		defer s.closeServers()
	}

	closeSOCKS, err := s.startSOCKS(ctx)
	if err != nil {
		return err
	}
	defer closeSOCKS() // after draining

	var workers sync.WaitGroup
	defer workers.Wait()
	defer cancel()
	traceCtx, endTrace := context.WithCancel(context.Background())
	defer endTrace() // after draining, so that all ends are told
	workers.Go(func() { s.proxy.Run(ctx) })
	workers.Go(func() { s.healthChecks.RunRetries(ctx, time.Second) })
	if s.noNode && s.flags.nodePorts.primary {
		s.setPrimaryAddresses(routedAddresses())
		workers.Go(func() { s.followRoutes(ctx) })
	}
	if s.trace {
		workers.Go(func() { printTrace(traceCtx, s.out, s.proxy.Trace.Reader(true)) })
	}
	if s.accessLog != nil {
		workers.Go(func() { s.accessLog.Run(traceCtx) })
	}
	if err := s.startDNS(ctx, &workers); err != nil {
		return err
	}
	failed := make(chan error, 2)
	workers.Go(func() { failed <- source.Run(ctx, s.apply(failed)) })

	remove := s.demo
	select {
	case err = <-failed:
		if err != nil {
			err = fmt.Errorf("cannot go on: %w", err)
		}
	case <-ctx.Done():
	case <-s.handedOver:
		s.log.WithField("connections", s.proxy.Connections()).Info("Another usher has taken over; connections that are open may end")
		s.closeServers()
	case sig := <-signals:
		s.log.WithFields(logrus.Fields{"signal": sig.String(), "connections": s.proxy.Connections(), "drain-timeout": s.flags.drainTimeout.String()}).
			Info("Stopping: no new connections; those that are open may end")
		remove = remove || sig == os.Interrupt
	}
	cancel()
	s.stop(pt, remove, signals)
	if s.isHandedOver() && inPod() {
		// The kubelet would start it again, and it would take over in its turn.
		select {
		case <-signals:
		case <-s.told:
		}
	}
	return err
}

// openPortal returns the portal, and the lock that goes with it.
func (s *server) openPortal(ctx context.Context) (*handover.Lock, portal.Portal, error) {
	options := s.flags.portalOptions(s.log)
	switch {
	case s.inside != nil:
		return nil, s.inside, nil
	case s.demo:
		return openPortalBeside(ctx, s.flags.portal, options)
	}
	return openPortal(ctx, s.flags.portal, options, s.takeOver)
}

// inPod reports whether a kubelet runs this process.
func inPod() bool { return os.Getenv("KUBERNETES_SERVICE_HOST") != "" }

// apply returns the function to which a source reports. If that cannot be
// carried out at all, it says so to failed.
func (s *server) apply(failed chan<- error) func([]config.Service) {
	first, dead := true, false
	return func(services []config.Service) {
		if dead {
			return
		}
		if !first {
			s.proxy.Apply(services)
			s.applied(services)
			if len(services) >= manyServices {
				go tidyMemory()
			}
			return
		}
		started := time.Now()
		if err := s.begin(services); err != nil {
			failed <- err
			dead = true
			return
		}
		first = false
		s.applied(services)
		s.log.WithFields(logrus.Fields{"services": len(services), "portal": s.proxy.Portal.Mode(), "took": time.Since(started).Round(time.Millisecond).String()}).Info("Serving")
		if s.started != nil {
			s.started(s.proxy)
		} else {
			printTable(s.out, s.proxy.Status())
		}
		go tidyMemory()
	}
}

// applied tells others what the proxy serves now: nobody is to be told of a Service
// by its name before it is served.
func (s *server) applied(services []config.Service) {
	s.healthChecks.Apply(services)
	if s.names != nil {
		s.names.Apply(services)
	}
}

// begin carries out the first full picture, and has the lock then: its own, or
// that of the usher that it takes over from.
func (s *server) begin(services []config.Service) error {
	if s.lock.Load() == nil && s.inside == nil && s.proxy.Portal.Mode() != portal.ModeNone {
		successor, err := s.succeed()
		if err != nil {
			return err
		}
		if successor != nil {
			s.proxy.Inherit(successor.Sockets)
			s.proxy.Apply(services)
			lock, err := successor.Take()
			if err != nil {
				return err
			}
			s.lock.Store(lock)
			s.settle()
			lock.Serve(s)
			return nil
		}
	}
	s.proxy.Apply(services)
	if lock := s.lock.Load(); lock != nil && !s.demo {
		lock.Serve(s)
	}
	return nil
}

// nodeChanged takes note of how this node is.
func (s *server) nodeChanged(node config.Node) {
	if s.flags.podInterfaces == "" {
		s.proxy.SetPodNetworks(append(slices.Clone(s.podNetworks), node.PodCIDRs...))
	}
	s.health.SetLeaving(node.Leaving)
	if !s.noNode {
		s.setPrimaryAddresses(node.Addresses)
	}
}

// programmed takes note of how long ago the change was that has been carried out.
func (s *server) programmed(took time.Duration) {
	if s.metrics != nil {
		s.metrics.Programmed(took)
	}
}

func (s *server) apiServer() admin.APIServerStatus {
	now := s.reach.Load().Status()
	out := admin.APIServerStatus{Connected: now.Connected, Since: now.Since}
	if now.Err != nil {
		out.Error = now.Err.Error()
	}
	return out
}

// stop stops the proxy, drains, and removes what the portal installed if remove
// is set. A further signal ends the draining.
func (s *server) stop(pt portal.Portal, remove bool, signals <-chan os.Signal) {
	s.health.SetStopping()
	s.proxy.Stop()
	s.healthChecks.Close()
	// Only who is in office, and has not handed it over, may remove the rules.
	remove = remove && (s.lock.Load() != nil || s.proxy.Portal.Mode() == portal.ModeNone) && !s.isHandedOver()
	if !remove {
		s.unlock() // a successor need not wait until connections have ended
	}
	grace, cancel := context.WithTimeout(context.Background(), s.flags.drainTimeout)
	defer cancel()
	go func() {
		if s.isHandedOver() {
			select {
			case <-signals: // to stop, which it does already
				close(s.told)
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
	broken := s.proxy.Drain(grace)
	if remove {
		// Not before: connections in flight need what the portal installed.
		if err := pt.Remove(context.Background()); err != nil {
			s.log.WithError(err).Error("The portal's rules could not all be removed; 'usher cleanup' tries again")
		}
	}
	if broken > 0 {
		s.log.WithField("connections", broken).Warn("Stopped; connections that had not ended were reset")
		return
	}
	s.log.Info("Stopped")
}

// healthTimeout is how long a change may wait before the proxy counts as
// unhealthy: twice kube-proxy's default sync period, as kube-proxy has it.
const healthTimeout = time.Minute

// allFlags returns the flags of cmd and their values; of those that --help does not
// list, the ones that were given.
func allFlags(cmd *cobra.Command) map[string]string {
	out := map[string]string{}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden || f.Changed {
			out[f.Name] = f.Value.String()
		}
	})
	return out
}

// printTrace prints events as they come until ctx ends.
func printTrace(ctx context.Context, out io.Writer, r *trace.Reader) {
	buf := make([]trace.Event, 64)
	for {
		n, missed, err := r.Next(ctx, buf)
		if err != nil {
			return
		}
		if missed > 0 {
			fmt.Fprintf(out, "… %s missed\n", plural(int(missed), "event"))
		}
		for _, e := range buf[:n] {
			if _, err := fmt.Fprintf(out, "%s %s\n", e.Time.Format("15:04:05.000"), e); err != nil {
				return // nobody listens any more
			}
		}
	}
}
