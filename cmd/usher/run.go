package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/manifest"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/trace"
)

func newRun() *cobra.Command {
	var r runCommand
	cmd := &cobra.Command{
		Use:   "run --manifests PATH",
		Short: "Serve the Services of manifests",
		Long: `Serves the Services in the manifests given: opens a listener for each service
port, installs portals that bring cluster IP traffic to it, and proxies. Folders
and files are watched; a change is live within a second.

Prints a table of what is served where, once it serves. Logs go to standard
error.

SIGTERM stops accepting, lets connections end for --drain-timeout, and leaves
the portal's rules to a successor, which takes them over. Ctrl-C (SIGINT) does
the same and then removes the rules. A second signal ends usher at once. 'usher
cleanup' removes what is left.`,
		Example: `  usher run --manifests examples/web.yaml
  kubectl get services,endpointslices -A -o yaml > all.yaml && usher run --manifests all.yaml
  usher run --manifests services/ --portal=none --trace`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return r.run(cmd) },
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&r.manifests, "manifests", nil, "file or folder with manifests (YAML or JSON): Service, EndpointSlice, Endpoints, List; may be repeated")
	flags.StringSliceVar(&r.serviceCIDRs, "service-cidr", defaultServiceCIDRs, serviceCIDRUsage)
	flags.BoolVar(&r.trace, "trace", false, "print each step of each connection to standard output")
	r.proxyFlags.register(flags)
	r.logs.register(flags, "auto")
	return cmd
}

type runCommand struct {
	manifests    []string
	serviceCIDRs []string
	trace        bool
	proxyFlags   proxyFlags
	logs         logFlags
}

func (r *runCommand) run(cmd *cobra.Command) error {
	if len(r.manifests) == 0 {
		return usagef("--manifests: at least one file or folder is needed")
	}
	if err := r.proxyFlags.check(); err != nil {
		return err
	}
	cidrs, err := parseCIDRs(r.serviceCIDRs)
	if err != nil {
		return err
	}
	log, err := r.logs.logger(cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	source, err := manifest.New(manifest.Options{Paths: r.manifests, ServiceCIDRs: cidrs, Log: log})
	if err != nil {
		return err
	}
	s := server{flags: &r.proxyFlags, log: log, out: cmd.OutOrStdout(), trace: r.trace}
	return s.serve(cmd.Context(), source)
}

// server is a proxy from start to stop.
type server struct {
	flags *proxyFlags
	log   *logrus.Logger
	out   io.Writer
	trace bool // print it to out

	// started is called once what the source has first is served; nil prints
	// the table.
	started func(p *proxy.Proxy)
	// demo is for a demo, which has no successor: the portal's rules
	// go, whatever ended the server; and an usher that is there already is left
	// alone.
	demo bool
}

// serve serves what source has until a signal comes, ctx ends, or the source
// fails.
func (s *server) serve(ctx context.Context, source config.Source) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	defer signal.Stop(signals)

	open := openPortal
	if s.demo {
		open = openPortalBeside
	}
	unlock, pt, err := open(ctx, s.flags.portal, s.flags.portalOptions(s.log))
	if err != nil {
		return err
	}
	defer unlock()
	p := s.flags.newProxy(pt, s.log)

	ctx, cancel := context.WithCancel(ctx)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer cancel()
	workers.Go(func() { p.Run(ctx) })
	if s.trace {
		workers.Go(func() { printTrace(ctx, s.out, p.Trace.Reader(true)) })
	}
	failed := make(chan error, 1)
	workers.Go(func() { failed <- source.Run(ctx, s.applyTo(p)) })

	remove := s.demo
	select {
	case err = <-failed:
		if err != nil {
			err = fmt.Errorf("cannot go on: %w", err)
		}
	case <-ctx.Done():
	case sig := <-signals:
		s.log.WithFields(logrus.Fields{"signal": sig.String(), "connections": p.Connections(), "drain-timeout": s.flags.drainTimeout.String()}).
			Info("Stopping: no new connections; those that are open may end")
		remove = remove || sig == os.Interrupt
	}
	cancel()
	s.stop(p, pt, remove, signals)
	return err
}

// applyTo returns the function to which a source reports.
func (s *server) applyTo(p *proxy.Proxy) func([]config.Service) {
	first := true
	return func(services []config.Service) {
		started := time.Now()
		p.Apply(services)
		if !first {
			return
		}
		first = false
		s.log.WithFields(logrus.Fields{"services": len(services), "portal": p.Portal.Mode(), "took": time.Since(started).Round(time.Millisecond).String()}).Info("Serving")
		if s.started != nil {
			s.started(p)
			return
		}
		printTable(s.out, p.Status())
	}
}

// stop stops p, removes what the portal installed if remove is set, and drains.
// A further signal ends the draining.
func (s *server) stop(p *proxy.Proxy, pt portal.Portal, remove bool, signals <-chan os.Signal) {
	p.Stop()
	if remove {
		if err := pt.Remove(context.Background()); err != nil {
			s.log.WithError(err).Error("The portal's rules could not all be removed; 'usher cleanup' tries again")
		}
	}
	grace, cancel := context.WithTimeout(context.Background(), s.flags.drainTimeout)
	defer cancel()
	go func() {
		select {
		case <-signals:
			cancel()
		case <-grace.Done():
		}
	}()
	if broken := p.Drain(grace); broken > 0 {
		s.log.WithField("connections", broken).Warn("Stopped; connections that had not ended were reset")
		return
	}
	s.log.Info("Stopped")
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
