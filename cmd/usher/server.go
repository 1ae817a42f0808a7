package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/kube"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/admin"
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

	podNetworks []netip.Prefix // besides those of the Node object

	// started is called once what the source has first is served; nil prints
	// the table.
	started func(p *proxy.Proxy)
	// demo is for a demo, which has no successor: the portal's rules go, whatever
	// ended the server; and an usher that is there already is left alone.
	demo bool

	// What a source that watches an API server adds.
	reach                *kube.Reach
	onProblem            func(config.PortID, *proxy.Problem)
	onHealthCheckProblem func(types.NamespacedName, error)

	proxy        *proxy.Proxy
	health       *admin.Health
	healthChecks *admin.HealthChecks
}

// serve serves what the source has until a signal comes, ctx ends, or the
// source fails.
func (s *server) serve(ctx context.Context, newSource func(context.Context, *server) (config.Source, error)) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	defer signal.Stop(signals)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	open := openPortal
	if s.demo {
		open = openPortalBeside
	}
	unlock, pt, err := open(ctx, s.flags.portal, s.flags.portalOptions(s.log))
	if err != nil {
		return err
	}
	defer unlock()
	s.proxy = s.flags.newProxy(pt, s.log)
	s.proxy.SetPodNetworks(s.podNetworks)
	s.health = &admin.Health{Sync: s.proxy.SyncStatus, Timeout: healthTimeout}
	s.healthChecks = &admin.HealthChecks{Serving: s.health.Serving, Networks: s.flags.nodePortAddresses, Log: s.log}
	source, err := newSource(ctx, s)
	if err != nil {
		return err
	}
	s.proxy.OnProblem = s.onProblem
	s.healthChecks.OnProblem = s.onHealthCheckProblem
	if s.reach != nil {
		s.health.APIServer = s.apiServer
	}
	if s.admin != nil {
		closeServers, err := s.startServers()
		if err != nil {
			return err
		}
		defer closeServers()
	}

	var workers sync.WaitGroup
	defer workers.Wait()
	defer cancel()
	workers.Go(func() { s.proxy.Run(ctx) })
	workers.Go(func() { s.healthChecks.RunRetries(ctx, s.flags.proxy.CheckInterval) })
	if s.trace {
		workers.Go(func() { printTrace(ctx, s.out, s.proxy.Trace.Reader(true)) })
	}
	failed := make(chan error, 1)
	workers.Go(func() { failed <- source.Run(ctx, s.apply()) })

	remove := s.demo
	select {
	case err = <-failed:
		if err != nil {
			err = fmt.Errorf("cannot go on: %w", err)
		}
	case <-ctx.Done():
	case sig := <-signals:
		s.log.WithFields(logrus.Fields{"signal": sig.String(), "connections": s.proxy.Connections(), "drain-timeout": s.flags.drainTimeout.String()}).
			Info("Stopping: no new connections; those that are open may end")
		remove = remove || sig == os.Interrupt
	}
	cancel()
	s.stop(pt, remove, signals)
	return err
}

// apply returns the function to which a source reports.
func (s *server) apply() func([]config.Service) {
	first := true
	return func(services []config.Service) {
		started := time.Now()
		s.proxy.Apply(services)
		s.healthChecks.Apply(services)
		if !first {
			return
		}
		first = false
		s.log.WithFields(logrus.Fields{"services": len(services), "portal": s.proxy.Portal.Mode(), "took": time.Since(started).Round(time.Millisecond).String()}).Info("Serving")
		if s.started != nil {
			s.started(s.proxy)
			return
		}
		printTable(s.out, s.proxy.Status())
	}
}

// nodeChanged takes note of how this node is.
func (s *server) nodeChanged(node config.Node) {
	s.proxy.SetPodNetworks(append(slices.Clone(s.podNetworks), node.PodCIDRs...))
	s.health.SetLeaving(node.Leaving)
}

func (s *server) apiServer() admin.APIServerStatus {
	now := s.reach.Status()
	out := admin.APIServerStatus{Connected: now.Connected, Since: now.Since}
	if now.Err != nil {
		out.Error = now.Err.Error()
	}
	return out
}

// stop stops the proxy, drains, and removes what the portal installed if remove
// is set. A further signal ends the draining.
func (s *server) stop(pt portal.Portal, remove bool, signals <-chan os.Signal) {
	s.proxy.Stop()
	s.healthChecks.Close()
	grace, cancel := context.WithTimeout(context.Background(), s.flags.drainTimeout)
	defer cancel()
	go func() {
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

// adminFlags say where HTTP is served.
type adminFlags struct {
	admin, healthz string
	hardFail       bool
}

func (f *adminFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.admin, "admin-address", "127.0.0.1:10249", "`host:port` for /metrics, /proxyMode, /configz; empty means none")
	flags.StringVar(&f.healthz, "healthz-address", "0.0.0.0:10256", "`host:port` for /healthz and /livez; empty means none, which is the default with --manifests")
	flags.BoolVar(&f.hardFail, "bind-address-hard-fail", false, "end if one of these addresses cannot be had, instead of going on without it")
}

// startServers starts the HTTP servers and returns what ends them.
func (s *server) startServers() (closeAll func(), err error) {
	metrics := admin.NewMetrics(s.proxy, s.health, version)
	s.proxy.OnSync = metrics.Synced
	var running []*admin.Server
	closeAll = func() {
		for _, r := range running {
			r.Close()
		}
	}
	start := func(flag, address string, serve func(string) (*admin.Server, error)) error {
		if address == "" {
			return nil
		}
		r, err := serve(address)
		if err == nil {
			running = append(running, r)
			return nil
		}
		if s.admin.hardFail {
			return fmt.Errorf("--%s: %w", flag, err)
		}
		s.log.WithError(err).Warnf("Going on without the server of --%s", flag)
		return nil
	}
	err = errors.Join(
		start("healthz-address", s.admin.healthz, func(a string) (*admin.Server, error) {
			return admin.Serve(a, admin.HealthHandler(s.health))
		}),
		start("admin-address", s.admin.admin, func(a string) (*admin.Server, error) {
			return admin.Serve(a, admin.Handler(s.health, metrics.Registry, s.settings))
		}),
	)
	if err != nil {
		closeAll()
	}
	return closeAll, err
}

// allFlags returns the flags of cmd and their values.
func allFlags(cmd *cobra.Command) map[string]string {
	out := map[string]string{}
	cmd.Flags().VisitAll(func(f *pflag.Flag) { out[f.Name] = f.Value.String() })
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
			if _, err := fmt.Fprintf(out, "%s %s\n", e.Time.Format("15:04:05.000"), e); errors.Is(err, syscall.EPIPE) {
				return
			}
		}
	}
}
