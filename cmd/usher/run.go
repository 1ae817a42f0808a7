package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/cmd/usher/daemon/kubeproxy"
	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/kube"
	"github.com/usherproxy/usher/config/manifest"
	"github.com/usherproxy/usher/config/translate"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/portforward"
)

func newRun() *cobra.Command { return newRunOf(&runCommand{}) }

func newRunOf(r *runCommand) *cobra.Command {
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
the same and then removes the rules. A second signal ends usher at once. 'usher
cleanup' removes what is left.`,
		Example: `  usher run --kubeconfig /etc/kubernetes/usher.conf --node-name worker-1
  usher run --manifests examples/web.yaml
  kubectl get services,endpointslices -A -o yaml > all.yaml && usher run --manifests all.yaml
  usher run --manifests services/ --portal=none --trace
  usher run --context staging --via=portforward --portal=none`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return r.run(cmd) },
	}
	flags := cmd.Flags()
	r.sourceFlags.register(flags)
	flags.StringVar(&r.nodeName, "node-name", "", "name of this node's Node object; empty means this machine's name, and with --via=portforward or auto that this is no node")
	flags.StringVar(&r.serviceProxyName, "service-proxy-name", "", "serve only Services whose label service.kubernetes.io/service-proxy-name has this value; empty means those without the label")
	flags.StringSliceVar(&r.nodePortAddresses, "nodeport-addresses", nil, "`networks` of the node addresses on which node ports are served, or the word primary, for those in the Node object (without one, those from which the node reaches other networks); empty means all addresses, loopback included")
	flags.StringSliceVar(&r.clusterCIDRs, "cluster-cidr", nil, "`networks` of the cluster's Pods, besides those that the Node object names: policies for clients from outside do not apply to Pods")
	flags.StringVar(&r.config, "config", "", "`file` with a KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1); a flag wins over it")
	flags.DurationVar(&r.maxDelay, "max-sync-delay", kube.DefaultMaxDelay, "how long changes may be gathered, while Services change all the time, before they are carried out")
	flags.BoolVar(&r.takeOver, "take-over", false, "if an usher serves this node already, take over from it without a gap; that one ends when its connections have")
	flags.BoolVar(&r.trace, "trace", false, "print each step of each connection to standard output")
	r.dns.register(flags)
	r.via.register(flags)
	r.socks.register(flags)
	r.proxyFlags.register(flags)
	r.adminFlags.register(flags)
	r.access.register(flags)
	r.logs.register(flags, "auto")
	r.kubeProxy.register(flags, &r.cluster.Server)
	return cmd
}

type runCommand struct {
	sourceFlags
	nodeName         string
	serviceProxyName string

	config            string
	nodePortAddresses []string
	clusterCIDRs      []string
	resync            time.Duration       // from the file only
	nodeIP            netip.Addr          // from the file only
	conntrack         kubeproxy.Conntrack // from the file only
	kubeProxy         kubeProxyFlags

	maxDelay   time.Duration
	takeOver   bool
	trace      bool
	dns        dnsFlags
	via        viaFlags
	socks      socksFlags
	proxyFlags proxyFlags
	adminFlags adminFlags
	access     accessFlags
	logs       logFlags
}

func (r *runCommand) run(cmd *cobra.Command) error {
	if r.kubeProxy.cleanup {
		cleanup := newCleanup()
		cleanup.SetContext(cmd.Context())
		cleanup.SetOut(cmd.OutOrStdout())
		cleanup.SetErr(cmd.ErrOrStderr())
		return cleanup.RunE(cleanup, nil)
	}
	if err := r.sourceFlags.check(); err != nil {
		return err
	}
	if err := r.via.check(); err != nil {
		return err
	}
	fromFiles := r.fromFiles() // also if a file that --config names says how to reach an API server
	if fromFiles && r.via.remote() {
		return usagef("--via=%s leads through an API server, and --manifests says that there is none", r.via.via)
	}
	if (fromFiles || r.via.remote()) && !cmd.Flags().Changed("healthz-address") {
		r.adminFlags.healthz = ""
	}
	if r.via.remote() && !cmd.Flags().Changed("dial-timeouts") {
		r.proxyFlags.proxy.Schedule = portforward.Schedule
	}
	var warnings []string
	if given := r.kubeProxy.given(cmd.Flags()); r.config != "" || len(given) > 0 {
		var err error
		if warnings, err = r.readKubeProxyConfig(cmd.Flags(), r.config, given); err != nil {
			return err
		}
	}
	if err := r.proxyFlags.check(); err != nil {
		return err
	}
	if err := r.socks.check(); err != nil {
		return err
	}
	if err := r.access.check(); err != nil {
		return err
	}
	var err error
	if r.proxyFlags.nodePorts, err = parseNodePortAddresses(r.nodePortAddresses, r.nodeIP); err != nil {
		return err
	}
	podNetworks, err := parseClusterCIDRs(r.clusterCIDRs)
	if err != nil {
		return err
	}
	log, err := r.logs.logger(cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	for _, w := range warnings {
		log.Warn(w)
	}
	conntrackErr := r.applyConntrack(log)
	if r.kubeProxy.initOnly {
		return conntrackErr
	}
	if conntrackErr != nil {
		log.Warn(conntrackErr)
	}
	if r.config != "" {
		if before, err := os.ReadFile(r.config); err == nil { // it was read a moment ago
			go watchConfig(cmd.Context(), r.config, before, configCheckInterval, log)
		}
	}
	if r.nodeName == "" && !r.via.remote() {
		if r.nodeName, err = hostname(); err != nil {
			return err
		}
	}
	s := server{flags: &r.proxyFlags, admin: &r.adminFlags, log: log, out: cmd.OutOrStdout(), trace: r.trace, takeOver: r.takeOver,
		settings: allFlags(cmd), access: r.access, socks: r.socks, podNetworks: podNetworks, noNode: fromFiles || r.nodeName == ""}
	if s.names, s.namesAt, err = r.dns.newServer(log); err != nil {
		return err
	}
	if fromFiles {
		return s.serve(cmd.Context(), r.manifestSource)
	}
	defer r.via.close()
	return s.serve(cmd.Context(), r.clusterSource)
}

// manifestSource returns the source for --manifests.
func (r *runCommand) manifestSource(_ context.Context, s *server) (config.Source, error) {
	return r.files(manifest.Options{Node: config.Node{Name: r.nodeName}, ServiceProxyName: r.serviceProxyName, Discovery: s.names != nil, Log: s.log})
}

// clusterSource returns the source for an API server, and lets the server tell
// it what goes wrong.
func (r *runCommand) clusterSource(ctx context.Context, s *server) (config.Source, error) {
	client, reach, err := r.connect()
	if err != nil {
		return nil, err
	}
	s.reach.Store(reach)
	if err := r.via.apply(&s.flags.proxy, r.cluster, s.log); err != nil {
		return nil, err
	}
	var events *kube.Events
	source, err := kube.New(kube.Options{
		Client:           client,
		Log:              s.log,
		NodeName:         r.nodeName,
		ServiceProxyName: r.serviceProxyName,
		Discovery:        s.names != nil,
		MaxDelay:         r.maxDelay,
		Resync:           r.resync,
		OnNode:           s.nodeChanged,
		OnProgrammed:     s.programmed,
		OnProblems: func(service types.NamespacedName, problems []translate.Problem) {
			for _, p := range problems {
				events.Warn(service, "PartNotServed", p.Error())
			}
		},
	})
	if err != nil {
		return nil, err
	}
	events, err = kube.NewEvents(ctx, client, source, r.nodeName)
	if err != nil {
		return nil, err
	}
	s.onProblem = func(id config.PortID, p *proxy.Problem) {
		if p == nil {
			events.Tell(id.ServiceName(), "Served", fmt.Sprintf("Service port %s is served again", id))
			return
		}
		events.Warn(id.ServiceName(), string(p.Reason), fmt.Sprintf("Service port %s is not served: %v", id, p.Err))
	}
	s.onHealthCheckProblem = func(service types.NamespacedName, err error) {
		if err == nil {
			events.Tell(service, "Served", "The health check node port is served again")
			return
		}
		events.Warn(service, "HealthCheckFailed", err.Error())
	}
	go warnWhileAway(ctx, reach, s.log)
	return source, nil
}

// warnWhileAway logs when the API server is lost and found.
func warnWhileAway(ctx context.Context, reach *kube.Reach, log logrus.FieldLogger) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	connected := true
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := reach.Status()
		if now.Since.IsZero() || now.Connected == connected {
			continue
		}
		if connected = now.Connected; connected {
			log.Info("The API server answers again")
		} else {
			log.WithError(now.Err).Warn("The API server does not answer; what is known goes on being served")
		}
	}
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
