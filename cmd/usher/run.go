package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/internal/serve"
	"github.com/usherproxy/usher/cmd/usher/daemon"
	"github.com/usherproxy/usher/cmd/usher/keeper"
	"github.com/usherproxy/usher/config/manifest"
	"github.com/usherproxy/usher/config/translate"
	"github.com/usherproxy/usher/portal/fdstore"
	"github.com/usherproxy/usher/portal/handover"
)

func newRun() *cobra.Command { return newRunOf(&runCommand{}) }

func newRunOf(r *runCommand) *cobra.Command {
	r.Flags = serve.New()
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Serve the Services of a cluster or of manifests",
		Long: `Serves Services: opens a listener for each service port, installs a portal that
redirects VIP traffic to it, and forwards connections to endpoints.

Services come from an API server (--kubeconfig; in a Pod, without flags, with the Pod's
credentials), or from files and folders (--manifests). Changes apply at once.

Once usher is serving, it prints a table of the served addresses. Logs go to standard
error.

SIGTERM stops accepting connections, waits up to --drain-timeout for open ones to
finish, and keeps the portal's rules for the next instance. Ctrl-C (SIGINT) does the
same and then removes the rules; with --remove-rules, redirects are removed first, for
another service proxy on this node. A second signal stops usher at once. 'usher cleanup'
removes leftovers. SIGHUP, which is sent when a terminal closes, acts like Ctrl-C if
usher runs in a terminal, else like SIGTERM. With --keeper, SIGHUP upgrades usher to
the program file at its path.

The exit code is 75 if another usher instance manages the portals and --take-over is
not set.`,
		Example: `  usher run --kubeconfig /etc/kubernetes/usher.conf --node-name worker-1
  usher run --manifests examples/web.yaml
  kubectl get services,endpointslices -A -o yaml | usher run --manifests -
  usher run --manifests services/ --portal=none --trace`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return r.run(cmd) },
	}
	flags := cmd.Flags()
	r.RegisterSource(flags)
	cli.Deprecate(flags, "context", "use a --kubeconfig whose current context is this one")
	cli.Group(flags, "Source of Services")
	r.RegisterNode(flags)
	flags.StringVar(&r.config, "config", "", "KubeProxyConfiguration `file` (kubeproxy.config.k8s.io/v1alpha1); flags override it")
	cli.Group(flags, "This node and what it serves")
	r.RegisterTakeOver(flags)
	flags.BoolVar(&r.keeper, "keeper", false, "Run a supervisor that holds copies of the listening sockets and restarts usher after a crash; new connections wait instead of being refused (Linux)")
	flags.BoolVar(&r.RemoveRules, "remove-rules", false, "Remove the portal's rules on shutdown: redirects first, listeners close 1s later. Use when another service proxy already serves this node")
	r.RegisterTrace(flags, "output")
	cli.Group(flags, "Restarts and tracing")
	r.RegisterProxy(flags)
	r.RegisterServers(flags)
	r.Logs.Register(flags, "auto")
	cli.Group(flags, "Logs")
	cli.MainFlags(cmd, "manifests", "kubeconfig", "node-name", "config", "service-proxy-name", "nodeport-addresses", "cluster-cidr", "take-over", "keeper", "remove-rules", "trace",
		"portal", "client-address", "dial-timeouts", "quarantine", "scheduler", "probe", "connection-idle-timeout", "max-connections", "udp-idle-timeout", "drain-timeout",
		"admin-address", "healthz-address", "access-log", "log-level", "log-format")
	r.kubeProxy.register(flags, &r.Cluster.Server)
	return cmd
}

type runCommand struct {
	serve.Flags
	config    string
	keeper    bool
	kubeProxy kubeProxyFlags
}

func (r *runCommand) run(cmd *cobra.Command) error {
	if r.kubeProxy.cleanup {
		return cleanup(cmd, cli.LogFlags{Level: "info", Format: "auto"})
	}
	warnings, err := r.complete(cmd)
	if err != nil {
		return err
	}
	r.OnReady = func(now daemon.Ready) { serve.PrintTable(cmd.OutOrStdout(), now.Proxy.Status()) }
	if r.Trace {
		r.OnTrace = serve.PrintTrace(cmd.OutOrStdout())
	}
	kept := os.Getenv(fdstore.KeeperVariable) != ""
	if !r.keeper || kept {
		if r.Manager, err = fdstore.FromEnvironment(r.Log); err != nil {
			r.Log.Warn(err)
		}
	}
	d, err := r.NewDaemon(cmd)
	if err != nil {
		return err
	}
	if r.keeper && !kept && !r.kubeProxy.initOnly {
		code, err := keeper.Run(keeper.Options{Arguments: os.Args, Log: r.Log, RemoveRules: r.RemoveRules, RemoveLeft: removeLeft})
		if err == nil && code != 0 {
			err = &cli.ExitError{Code: code}
		}
		return err
	}
	for _, w := range warnings {
		r.Log.Warn(w)
	}
	if r.kubeProxy.initOnly {
		err := daemon.SetConntrack(r.Conntrack, r.Log)
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) { // as on a node that is itself a container
			r.Log.WithError(err).Warn("Cannot change connection tracking settings; usher works with those that the node has")
			return nil
		}
		return err
	}
	if r.config != "" {
		if before, err := os.ReadFile(r.config); err == nil { // complete has just read it
			go watchConfig(cmd.Context(), r.config, before, configCheckInterval, r.Log)
		}
	}
	hangup := serve.ClosedTerminal()
	if kept { // the keeper gets the signal too, and handles it
		hangup = nil
	}
	err = serve.Run(cmd, d, hangup)
	if errors.Is(err, handover.ErrLocked) {
		fmt.Fprintf(cmd.ErrOrStderr(), "usher: %v\n", err)
		return &cli.ExitError{Code: keeper.ExitLocked}
	}
	return err
}

// complete derives settings from other flags, and applies kube-proxy's configuration to flags that
// are not set. It returns warnings about deprecated flags, that configuration, and environment
// variables without effect.
func (r *runCommand) complete(cmd *cobra.Command) (warnings []string, err error) {
	flags := cmd.Flags()
	if err := r.OneSource(); err != nil { // before kube-proxy's configuration sets --kubeconfig, which may accompany --manifests
		return nil, err
	}
	if r.ServiceProxyName == translate.AnyProxy {
		return nil, cli.Usagef("--service-proxy-name: invalid value %q: must be a label value", translate.AnyProxy)
	}
	warnings = cli.Deprecations(flags) // before kube-proxy's configuration sets flags
	if r.keeper && slices.Contains(r.Manifests, manifest.Stdin) {
		return nil, cli.Usagef("--keeper cannot be combined with --manifests=-: a restarted usher cannot read standard input again; use a file")
	}
	if r.FromFiles() && !flags.Changed("healthz-address") {
		r.HealthzAddress = ""
	}
	if !r.FromFiles() {
		r.Conntrack = daemon.DefaultConntrack
	}
	if given := r.kubeProxy.given(flags); r.config != "" || len(given) > 0 {
		more, err := r.readKubeProxyConfig(flags, given)
		if err != nil {
			return nil, err
		}
		warnings = append(warnings, more...)
	}
	if err := r.Complete(cmd); err != nil {
		return nil, err
	}
	if r.NodeName == "" {
		if r.NodeName, err = serve.Hostname(); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} {
		if os.Getenv(name) != "" {
			warnings = append(warnings, name+": ignored, usher does not send spans; collect the JSON of --access-log instead (see docs/observing.md)")
		}
	}
	return warnings, nil
}
