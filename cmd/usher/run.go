package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/cmd/usher/cli"
	"github.com/usherproxy/usher/cmd/usher/daemon"
	"github.com/usherproxy/usher/cmd/usher/keeper"
	"github.com/usherproxy/usher/cmd/usher/show"
	"github.com/usherproxy/usher/config/manifest"
	"github.com/usherproxy/usher/portal/fdstore"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/proxy/portforward"
	"github.com/usherproxy/usher/proxy/trace"
)

func newRun() *cobra.Command { return newRunOf(&runCommand{}) }

func newRunOf(r *runCommand) *cobra.Command {
	r.configFlags = newConfigFlags()
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Serve the Services of a cluster, or of manifests",
		Long: `Serves Services: opens a listener for each service port, installs portals that
bring cluster IP traffic to it, and proxies.

Services come from an API server (--kubeconfig; in a Pod, without flags, with the
Pod's credentials), or from files and folders (--manifests). Changes are live at
once.

Prints a table of what is served where, once it serves. Logs go to standard
error.

SIGTERM stops accepting, lets connections end for --drain-timeout, and leaves
the portal's rules to a successor, which takes them over. Ctrl-C (SIGINT) does
the same and then removes the rules; with --remove-rules they go first, for another service
proxy that is there. A second signal ends usher at once. 'usher
cleanup' removes what is left. SIGHUP, which a closed terminal sends, is like Ctrl-C if
usher runs in a terminal, and like SIGTERM otherwise. With --keeper, SIGHUP replaces the
program by the one that is at its path by then.

The exit code is 75 if another usher manages the portals, and this one does not take
over.`,
		Example: `  usher run --kubeconfig /etc/kubernetes/usher.conf --node-name worker-1
  usher run --manifests examples/web.yaml
  kubectl get services,endpointslices -A -o yaml | usher run --manifests -
  usher run --manifests services/ --portal=none --trace
  usher run --context staging --via=portforward --portal=none`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return r.run(cmd) },
	}
	flags := cmd.Flags()
	r.registerSource(flags)
	cli.Group(flags, "Source of Services")
	flags.StringVar(&r.NodeName, "node-name", "", "name of this node's Node object; empty means this machine's name, and with --via=portforward or auto that this is no node")
	r.registerNode(flags)
	flags.StringVar(&r.ServiceProxyName, "service-proxy-name", "", "serve only Services whose label service.kubernetes.io/service-proxy-name has this value; empty means those without the label")
	flags.StringSliceVar(&r.nodePortAddresses, "nodeport-addresses", nil, "`networks` of the node addresses on which node ports are served, or the words primary (the addresses in the Node object; without one, those from which the node reaches other networks), localhost and all, in any mix; empty means all addresses, loopback included")
	flags.BoolVar(&r.Proxy.ClaimNodeAddresses, "claim-node-addresses", false, "let a Service whose external or load balancer IP is an address of this node have the port of another Service's node port or of a process that listens there, with the portals iptables and nftables")
	flags.StringSliceVar(&r.clusterCIDRs, "cluster-cidr", nil, "`networks` of the cluster's Pods, besides those that the Node object names: policies for clients from outside do not apply to Pods")
	flags.StringSliceVar(&r.loadBalancers, "load-balancer-cidr", nil, loadBalancersUsage)
	flags.StringSliceVar(&r.forbidden, "forbidden-endpoint-cidrs", []string{metadata}, "`networks` in which no endpoint may be, since usher's connections start on the node, where no policy for Pods filters them; the word metadata stands for metadata services of clouds; empty means none; the default is for Services of an API server only")
	flags.BoolVar(&r.clientAddressAnnotation, "client-address-annotation", true, "let Services have the annotation usher.io/client-address; without it, only --client-address says whom endpoints see")
	flags.StringVar(&r.config, "config", "", "`file` with a KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1); a flag wins over it")
	flags.DurationVar(&r.MaxDelay, "max-sync-delay", r.MaxDelay, "how long changes may be gathered, while Services change all the time, before they are carried out")
	cli.Group(flags, "This node and what it serves")
	flags.BoolVar(&r.TakeOver, "take-over", false, "if an usher serves this node already, take over from it without a gap; that one ends when its connections have")
	flags.BoolVar(&r.keeper, "keeper", false, "be a small process that holds copies of the listening sockets, and starts usher again when it ends unexpectedly: clients wait meanwhile, and none is refused (Linux)")
	flags.BoolVar(&r.RemoveRules, "remove-rules", false, "when usher is stopped, remove the portal's rules, those that redirect first and a second before listeners close: nobody is refused if another service proxy serves this node by then")
	flags.BoolVar(&r.trace, "trace", false, "print each step of each connection to standard output")
	cli.Group(flags, "Restarts and tracing")
	r.registerDNS(flags)
	cli.Group(flags, "DNS")
	r.registerVia(flags)
	cli.Group(flags, endpointGroup)
	r.registerProxy(flags)
	r.registerServers(flags)
	r.logs.register(flags, "auto")
	cli.Group(flags, "Logs")
	r.kubeProxy.register(flags, &r.Cluster.Server)
	return cmd
}

type runCommand struct {
	configFlags
	config                  string
	forbidden               []string
	clientAddressAnnotation bool
	trace                   bool
	keeper                  bool
	kubeProxy               kubeProxyFlags
}

// metadata is the word for metadataServices in --forbidden-endpoint-cidrs.
const metadata = "metadata"

// metadataServices are the metadata services of Azure, Alibaba Cloud, Oracle Cloud, AWS and Google
// Cloud that are not at link-local addresses, which no endpoint may have anyway.
var metadataServices = []string{"168.63.129.16/32", "100.100.100.200/32", "192.0.0.192/32", "fd00:ec2::254/128", "fd20:ce::254/128"}

func (r *runCommand) run(cmd *cobra.Command) error {
	if r.kubeProxy.cleanup {
		return cleanup(cmd, logFlags{level: "info", format: "auto"})
	}
	warnings, err := r.complete(cmd)
	if err != nil {
		return err
	}
	r.OnReady = func(now daemon.Ready) { printTable(cmd.OutOrStdout(), now.Proxy.Status()) }
	if r.trace {
		r.OnTrace = printTrace(cmd.OutOrStdout())
	}
	kept := os.Getenv(fdstore.KeeperVariable) != ""
	if !r.keeper || kept {
		if r.Manager, err = fdstore.FromEnvironment(r.Log); err != nil {
			r.Log.Warn(err)
		}
	}
	d, err := r.newDaemon(cmd)
	if err != nil {
		return err
	}
	if r.keeper && !kept && !r.kubeProxy.initOnly {
		code, err := keeper.Run(keeper.Options{Arguments: os.Args, LogLevel: r.logs.level, LogFormat: r.logs.format, Log: r.Log})
		if err == nil && code != 0 {
			err = &exitError{code}
		}
		return err
	}
	for _, w := range warnings {
		r.Log.Warn(w)
	}
	if r.kubeProxy.initOnly {
		return daemon.SetConntrack(r.Conntrack, r.Log)
	}
	if r.config != "" {
		if before, err := os.ReadFile(r.config); err == nil { // it was read a moment ago
			go watchConfig(cmd.Context(), r.config, before, configCheckInterval, r.Log)
		}
	}
	hangup := closedTerminal()
	if kept { // the keeper gets it too, and acts on it
		hangup = nil
	}
	err = serve(cmd, d, hangup)
	if errors.Is(err, handover.ErrLocked) {
		fmt.Fprintf(cmd.ErrOrStderr(), "usher: %v\n", err)
		return &exitError{keeper.ExitLocked}
	}
	return err
}

// complete fills in what follows from other flags, and what kube-proxy's
// configuration says where a flag does not. It returns warnings about that, and about
// settings that were removed.
func (r *runCommand) complete(cmd *cobra.Command) (warnings []string, err error) {
	flags := cmd.Flags()
	if err := r.oneSource(); err != nil { // before a file may say how to reach an API server
		return nil, err
	}
	if r.keeper && slices.Contains(r.Manifests, manifest.Stdin) {
		return nil, usagef("--keeper starts usher again, which could not read --manifests=- once more; name a file")
	}
	if (r.fromFiles() || r.Via.Remote()) && !flags.Changed("healthz-address") {
		r.HealthzAddress = ""
	}
	if r.Via.Remote() && !flags.Changed("dial-timeouts") {
		r.Proxy.Schedule = portforward.Schedule
	}
	if !r.fromFiles() && !r.Via.Remote() {
		r.Conntrack = daemon.DefaultConntrack
	}
	if given := r.kubeProxy.given(flags); r.config != "" || len(given) > 0 {
		if warnings, err = r.readKubeProxyConfig(flags, given); err != nil {
			return nil, err
		}
	}
	r.NoClientAddress = !r.clientAddressAnnotation
	if !r.fromFiles() || flags.Changed("forbidden-endpoint-cidrs") {
		networks := r.forbidden
		if i := slices.Index(networks, metadata); i >= 0 {
			networks = slices.Concat(networks[:i], metadataServices, networks[i+1:])
		}
		if r.ForbiddenEndpoints, err = parseCIDRs(networks, "--forbidden-endpoint-cidrs: %q is neither a CIDR such as 192.0.2.0/24 nor the word metadata"); err != nil {
			return nil, err
		}
	}
	if err := r.configFlags.complete(cmd); err != nil {
		return nil, err
	}
	if r.NodeName == "" && !r.Via.Remote() {
		if r.NodeName, err = hostname(); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} {
		if os.Getenv(name) != "" {
			warnings = append(warnings, name+": ignored, usher no longer sends spans; collect the JSON of --access-log (docs/observing.md)")
		}
	}
	return warnings, nil
}

// hostname returns this machine's name as kubelet and kube-proxy use it for the
// Node object.
func hostname() (string, error) {
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("--node-name is not given, and this machine's name cannot be found out: %w", err)
	}
	return strings.ToLower(strings.TrimSpace(name)), nil
}

// printTrace returns what prints steps as they come until ctx ends.
func printTrace(out io.Writer) func(ctx context.Context, steps *trace.Reader) {
	return func(ctx context.Context, steps *trace.Reader) {
		buf := make([]trace.Event, 64)
		for {
			n, missed, err := steps.Next(ctx, buf)
			if err != nil {
				return
			}
			if missed > 0 {
				fmt.Fprintf(out, "… %s missed\n", show.Plural(int(missed), "event"))
			}
			for _, e := range buf[:n] {
				if _, err := fmt.Fprintf(out, "%s %s\n", e.Time.Format("15:04:05.000"), e); err != nil {
					return // nobody listens any more
				}
			}
		}
	}
}
