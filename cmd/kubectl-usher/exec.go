package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/internal/serve"
	"github.com/usherproxy/usher/cmd/kubectl-usher/laptop"
	"github.com/usherproxy/usher/cmd/usher/daemon"
	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/environ"
	"github.com/usherproxy/usher/config/translate"
	"github.com/usherproxy/usher/portal/netns"
	"github.com/usherproxy/usher/proxy/dns"
	"github.com/usherproxy/usher/proxy/localhost"
	"github.com/usherproxy/usher/proxy/uplink"
)

func newExec() *cobra.Command { return newExecOf(&execCommand{}) }

func newExecOf(e *execCommand) *cobra.Command {
	e.Flags = serve.New()
	cmd := &cobra.Command{
		Use:   "exec [flags] [-- COMMAND [ARGUMENT]...]",
		Short: "Run a command that reaches Services like a Pod, without root",
		Long: `Runs a command in a dedicated network namespace (Linux). Inside, every Service is
reachable at its cluster IP and port (TCP and UDP), Service names resolve (web,
web.default, web.default.svc.cluster.local), and the environment has the variables
that a Pod would have. Other networks and servers on this machine's localhost stay
reachable. The machine itself is not changed: when the command exits, usher kills
its remaining processes and removes the namespace.

The default command is $SHELL, or /bin/sh. USHER_EXEC in the environment is the
namespace for short Service names. A prompt can show it:

  PS1='${USHER_EXEC:+(usher $USHER_EXEC) }'$PS1

Services come from files and folders (--manifests), or from an API server (from
kubectl's kubeconfig). New and changed Services are available at once.

The command inherits the terminal, standard input and output, working directory and
signals. usher's exit code is the command's exit code, or 128 plus the signal number
if a signal ended it, 127 if the command does not exist, and 126 if it cannot run.

It does not need root, but a kernel that lets non-root users create user namespaces.
Otherwise, use 'kubectl usher connect'.`,
		Example: `  kubectl usher exec --manifests examples/web.yaml -- curl http://web.default/
  kubectl usher exec                       # a shell "inside" kubectl's cluster
  kubectl usher exec --context staging -n shop -- npm run dev`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				args = []string{cmp.Or(os.Getenv("SHELL"), "/bin/sh")}
			}
			return e.run(cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // flags after the command belong to the command
	e.RegisterSource(flags)
	flags.StringVarP(&e.namespace, "namespace", "n", "", "Namespace for short Service names and environment variables. Empty = the namespace of the kubeconfig's context, or default")
	e.names.registerDomain(flags)
	e.RegisterTrace(flags, "error")
	flags.StringVar(&e.AdminAddress, "admin-address", "", "Listen address `host:port` of the dashboard and the API that 'usher get', 'top' and 'trace' query. Empty = none")
	e.via.register(flags, viaAuto)
	e.Logs.Register(flags, "text")
	cli.SetDefault(flags, "log-level", "error") // the command uses the terminal
	return cmd
}

// newExecInside returns the hidden command that exec starts in the network namespace.
func newExecInside() *cobra.Command {
	return &cobra.Command{
		Use:    execInside,
		Hidden: true,
		Args:   cli.NoArgs,
		RunE:   func(*cobra.Command, []string) error { return netns.Inside() },
	}
}

// execMarker is the environment variable that exec sets for its command, to the namespace for short Service names.
const execMarker = "USHER_EXEC"

// execInside is the name of the command of newExecInside.
const execInside = "exec-inside"

type execCommand struct {
	serve.Flags
	via       viaFlag
	names     nameFlags
	namespace string
}

// run runs the command, and returns its exit code as a cli.ExitError unless that is 0.
func (e *execCommand) run(cmd *cobra.Command, args []string) error {
	if err := e.complete(cmd); err != nil {
		return err
	}
	path, err := exec.LookPath(args[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return notRun(cmd, args[0], err)
	}
	signals := make(chan os.Signal, 8)
	notify(signals)

	resolver, err := dns.New(e.names.options)
	if err != nil {
		return err
	}
	namespace, leave, err := newNamespace(resolver.PodResolvConf(e.namespace, netns.Address), cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	e.Netns = namespace
	if e.Names, err = laptop.NewNames(netip.AddrPortFrom(netns.Address, dnsPort), e.names.options, namespace); err != nil {
		return err
	}
	ready := make(chan []config.Service, 1)
	e.OnReady = func(now daemon.Ready) { ready <- now.Services }
	if e.Trace {
		e.OnTrace = serve.PrintTrace(cmd.ErrOrStderr())
	}
	d, err := e.NewDaemon(cmd)
	if err != nil {
		return err
	}
	serve.IgnorePipes()
	loopback := localhost.New(namespace.Socket)
	loopback.Refresh()
	go loopback.Run(ctx)
	served := make(chan error, 1)
	go func() { served <- d.Run(ctx, nil) }()
	first, err := e.await(cmd, d, ready, served, signals)
	if err != nil {
		return err
	}
	env := environ.Over(os.Environ(), append(environ.OfPod(first, e.namespace), environ.Variable{Name: execMarker, Value: e.namespace}))
	code, err := namespace.Run(netns.Command{Path: path, Args: args, Env: env}, signals)
	cancel()
	if err := <-served; err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "usher: %v\n", err)
	}
	switch {
	case err != nil && code == 0:
		return notRun(cmd, args[0], err)
	case code != 0:
		return &cli.ExitError{Code: code}
	}
	return nil
}

// complete checks the flags, and sets the default namespace and the settings without a flag.
func (e *execCommand) complete(cmd *cobra.Command) (err error) {
	if err := e.OneSource(); err != nil {
		return err
	}
	if err := e.via.complete(&e.Flags, cmd.Flags()); err != nil {
		return err
	}
	e.HardFail = true
	e.ServiceProxyName = translate.AnyProxy
	e.DrainTimeout = 0 // on shutdown, the command has exited, and with it the clients
	e.Cluster.AsUser = true
	if err := e.Complete(cmd); err != nil {
		return err
	}
	if _, err := dns.ParseDomain(e.names.options.Domain); err != nil {
		return cli.Usagef("--dns-domain: %w", err)
	}
	e.names.options.Log = e.Log
	if e.namespace != "" {
		return nil
	}
	e.namespace, err = e.KubeNamespace()
	return err
}

// await returns the initial Services when they are served. It returns an error if this fails or a signal arrives.
func (e *execCommand) await(cmd *cobra.Command, d *daemon.Daemon, ready <-chan []config.Service, served <-chan error, signals <-chan os.Signal) ([]config.Service, error) {
	var waiting <-chan time.Time // nil for files, which are read without waiting
	if !e.FromFiles() {
		ticker := time.NewTicker(3 * time.Second)
		defer ticker.Stop()
		waiting = ticker.C
	}
	for said := ""; ; {
		select {
		case services := <-ready:
			return services, nil
		case err := <-served:
			return nil, err
		case sig := <-signals:
			return nil, &cli.ExitError{Code: 128 + int(sig.(syscall.Signal))}
		case <-waiting:
			why := "no response yet"
			if api, known := d.APIServer(); known && api.Err != nil {
				if why = api.Err.Error(); why == said && api.Reason.Denied() {
					return nil, fmt.Errorf("%w; %s", api.Err, api.Reason.Remedy())
				}
			}
			if why != said {
				fmt.Fprintf(cmd.ErrOrStderr(), "usher: still waiting for the API server to list Services: %s\n", why)
			}
			said = why
		}
	}
}

// notify relays signals to the channel, except those that the parent process ignored.
func notify(signals chan<- os.Signal) {
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
}

// notRun prints why a command was not run, and returns an ExitError with the code that shells use for that.
func notRun(cmd *cobra.Command, name string, err error) error {
	fmt.Fprintf(cmd.ErrOrStderr(), "usher: %s: %v\n", name, err)
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return &cli.ExitError{Code: 127}
	}
	return &cli.ExitError{Code: 126}
}

// dnsPort is the port of all nameservers of resolv.conf(5), which cannot name another.
const dnsPort = 53

// newNamespace creates a network namespace with access to other networks, in which /etc/resolv.conf is resolvConf. If
// other networks cannot be reached, it writes a warning to warn. leave removes the namespace.
func newNamespace(resolvConf string, warn io.Writer) (namespace *netns.Namespace, leave func(), err error) {
	namespace, err = netns.Start(netns.Options{Self: []string{execInside}, ResolvConf: resolvConf})
	if err != nil {
		return nil, nil, err
	}
	var up *uplink.Uplink
	tun, err := namespace.Tun()
	if err == nil {
		up, err = uplink.Start(tun, netns.MTU)
	}
	if err != nil {
		fmt.Fprintf(warn, "usher: warning: the command can reach Services and localhost, but no other networks: %v\n", err)
		return namespace, namespace.Close, nil
	}
	return namespace, func() {
		namespace.Close()
		up.Close()
	}, nil
}
