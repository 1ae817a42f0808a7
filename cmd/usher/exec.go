package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/environ"
	"github.com/usherproxy/usher/config/kube"
	"github.com/usherproxy/usher/config/manifest"
	"github.com/usherproxy/usher/portal/netns"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/dns"
	"github.com/usherproxy/usher/proxy/portforward"
)

func newExec() *cobra.Command {
	var e execCommand
	cmd := &cobra.Command{
		Use:   "exec [flags] -- COMMAND [ARGUMENT]...",
		Short: "Run a command that reaches Services as a Pod would, without root",
		Long: `Runs a command in a network namespace of its own (Linux). Inside, every Service
answers at its cluster IP and port (TCP and UDP), names of Services resolve
(web, web.default, web.default.svc.cluster.local), and the environment has the
variables that a Pod would have. All else goes on working: other networks, and
servers on this machine's localhost. Nothing on the machine itself is changed,
and nothing stays when the command has ended: what it left running is killed.

Services come from files and folders (--manifests), or from an API server, by the
kubeconfig that kubectl would use. Services that come or change later are there
at once.

The command has the terminal, standard input and output, working directory and
signals; usher's exit code is the command's, 128 and the signal's number if one
ended it, 127 if there is no such command and 126 if it cannot be run.

Root is not needed, but a kernel that lets ordinary users make user namespaces.
Where it does not, there is 'usher run --portal=none'.`,
		Example: `  usher exec --manifests examples/web.yaml -- curl http://web.default/
  usher exec -- bash                       # a shell "inside" kubectl's cluster
  usher exec --context staging -n shop -- npm run dev`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("exec needs a command, as in 'usher exec -- bash'")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return e.run(cmd, args) },
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // what comes behind the command is the command's
	e.sourceFlags.register(flags)
	flags.StringVarP(&e.namespace, "namespace", "n", "", "namespace whose Services have short names, and variables; empty means that of the kubeconfig's context, or default")
	e.dns.registerDomain(flags)
	flags.BoolVar(&e.trace, "trace", false, "print each step of each connection to standard error")
	flags.StringVar(&e.admin.admin, "admin-address", "", "`host:port` for the dashboard and the API that 'usher get', 'top' and 'trace' ask; empty means none")
	e.via.register(flags)
	setDefault(flags, "via", viaAuto)
	e.logs.register(flags, "text")
	setDefault(flags, "log-level", "error") // the terminal is the command's
	e.proxyFlags.register(pflag.NewFlagSet("", pflag.ContinueOnError))
	return cmd
}

// setDefault gives a flag another default.
func setDefault(flags *pflag.FlagSet, name, value string) {
	f := flags.Lookup(name)
	f.DefValue = value
	if err := f.Value.Set(value); err != nil {
		panic(err)
	}
}

// newExecInside is what exec starts to hold the namespace.
func newExecInside() *cobra.Command {
	return &cobra.Command{
		Use:    execInside,
		Hidden: true,
		Args:   noArgs,
		RunE:   func(*cobra.Command, []string) error { return netns.Inside() },
	}
}

const execInside = "exec-inside"

type execCommand struct {
	sourceFlags
	namespace  string
	trace      bool
	dns        dnsFlags // the domain only
	admin      adminFlags
	via        viaFlags
	proxyFlags proxyFlags // its defaults: there are no flags for it
	logs       logFlags
}

// run runs the command, and returns its exit code as an exitError unless that is 0.
func (e *execCommand) run(cmd *cobra.Command, args []string) error {
	if err := e.complete(cmd.Flags()); err != nil {
		return err
	}
	log, err := e.logs.logger(cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	path, err := exec.LookPath(args[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return notRun(cmd, args[0], err)
	}
	signals := make(chan os.Signal, 8)
	notify(signals)

	names, err := dns.New(dns.Options{Domain: e.dns.domain, Log: log})
	if err != nil {
		return usagef("--dns-domain: %w", err)
	}
	in, err := newInside(names.PodResolvConf(e.namespace, netns.Address), log)
	if err != nil {
		return err
	}
	defer in.leave()
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	e.proxyFlags.proxy.Socket = in.namespace.Socket
	s := server{flags: &e.proxyFlags, log: log, out: cmd.ErrOrStderr(), trace: e.trace, settings: allFlags(cmd), inside: in.namespace.Portal(),
		names: names, namesAt: netip.AddrPortFrom(netns.Address, dnsPort), listenNames: in.listenNames}
	if e.admin.admin != "" {
		s.admin = &e.admin
	}
	ready := make(chan struct{})
	s.started = func(*proxy.Proxy) { close(ready) }
	in.serve(ctx)
	var first []config.Service // when it is ready
	served := make(chan error, 1)
	go func() {
		served <- s.serve(ctx, func(ctx context.Context, s *server) (config.Source, error) { return e.source(ctx, s, &first) })
	}()
	if err := e.await(cmd, &s, ready, served, signals); err != nil {
		return err
	}
	env := environ.Over(os.Environ(), environ.OfPod(first, e.namespace))
	code, err := in.namespace.Run(netns.Command{Path: path, Args: args, Env: env}, signals)
	cancel()
	err = errors.Join(err, <-served)
	switch {
	case err != nil && code == 0:
		return notRun(cmd, args[0], err)
	case code != 0:
		return &exitError{code}
	}
	return nil
}

// complete checks the flags, and fills in what follows from others.
func (e *execCommand) complete(flags *pflag.FlagSet) (err error) {
	if err := e.sourceFlags.check(); err != nil {
		return err
	}
	if err := e.via.check(); err != nil {
		return err
	}
	e.admin.hardFail = true
	if e.fromFiles() {
		if flags.Changed("via") && e.via.remote() {
			return usagef("--via=%s leads through an API server, and --manifests says that there is none", e.via.via)
		}
		e.via.via = viaDirect
	}
	if e.via.remote() {
		e.proxyFlags.proxy.Schedule = portforward.Schedule
	}
	e.proxyFlags.drainTimeout = 0 // who has connections has ended
	e.cluster.AsUser = true
	switch {
	case e.namespace != "":
	case e.fromFiles():
		e.namespace = "default"
	default:
		if e.namespace, err = e.cluster.Namespace(); err != nil {
			return noSource(err)
		}
	}
	return nil
}

// await returns when the Services that there are first are served, or an error if
// it does not come to that.
func (e *execCommand) await(cmd *cobra.Command, s *server, ready <-chan struct{}, served <-chan error, signals <-chan os.Signal) error {
	var waiting <-chan time.Time // never, for files: they are read as fast as this machine can
	if !e.fromFiles() {
		waiting = time.After(3 * time.Second)
	}
	for {
		select {
		case <-ready:
			return nil
		case err := <-served:
			return err
		case sig := <-signals:
			return &exitError{128 + int(sig.(syscall.Signal))}
		case <-waiting:
			why := "it has not answered"
			if reach := s.reach.Load(); reach != nil {
				if err := reach.Status().Err; err != nil {
					why = err.Error()
				}
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "usher: still waiting for the API server to tell its Services: %s\n", why)
		}
	}
}

// source returns where Services come from. What it has first is in first before the
// server sees it.
func (e *execCommand) source(ctx context.Context, s *server, first *[]config.Service) (config.Source, error) {
	source, err := e.openSource(ctx, s)
	if err != nil {
		return nil, err
	}
	return observed{source, first}, nil
}

func (e *execCommand) openSource(ctx context.Context, s *server) (config.Source, error) {
	if e.fromFiles() {
		return e.files(manifest.Options{Discovery: true, Log: s.log})
	}
	client, reach, err := e.connect()
	if err != nil {
		return nil, err
	}
	s.reach.Store(reach)
	if err := e.via.apply(&e.proxyFlags.proxy, e.cluster, s.log); err != nil {
		return nil, err
	}
	go warnWhileAway(ctx, reach, s.log)
	return kube.New(kube.Options{Client: client, Discovery: true, Log: s.log})
}

// observed is a source that keeps what it tells first.
type observed struct {
	config.Source
	first *[]config.Service
}

// Run implements config.Source.
func (o observed) Run(ctx context.Context, apply func([]config.Service)) error {
	told := false
	return o.Source.Run(ctx, func(services []config.Service) {
		if !told {
			*o.first, told = services, true
		}
		apply(services)
	})
}

// notify lets signals that end or tell something come to the channel, but those
// that whoever started usher wants ignored.
func notify(signals chan<- os.Signal) {
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
}

// notRun says why a command was not run, and returns the exit code that shells
// have for that.
func notRun(cmd *cobra.Command, name string, err error) error {
	fmt.Fprintf(cmd.ErrOrStderr(), "usher: %s: %v\n", name, err)
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return &exitError{127}
	}
	return &exitError{126}
}
