package main

import (
	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/internal/serve"
	"github.com/usherproxy/usher/cmd/kubectl-usher/laptop"
	"github.com/usherproxy/usher/cmd/usher/daemon"
	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/translate"
)

func newConnect() *cobra.Command { return newConnectOf(&connectCommand{Flags: serve.New()}) }

func newConnectOf(c *connectCommand) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "connect",
		Short: "Make a cluster's Services reachable from programs on this machine",
		Long: `Serves Services on this machine until Ctrl-C. Services come from an API server (from
kubectl's kubeconfig) or from files and folders (--manifests). Programs reach them:

- by name, through a SOCKS5 and HTTP proxy (--socks): 'kubectl usher proxy-env'
  prints the environment variables that make programs use it;
- at the addresses in the table that it prints at startup;
- at their cluster IPs, as root, with --portal=auto.

--dns runs a DNS server for Service names, for resolvers on this machine. Endpoints are
reached through the API server, with your permissions: see --via.

For a single command on Linux, 'kubectl usher exec' needs none of this.`,
		Example: `  kubectl usher connect --context staging
  curl -x 127.0.0.1:1080 http://web.default/
  sudo kubectl usher connect --kubeconfig ~/.kube/config --portal=auto
  kubectl usher connect --manifests examples/ --dns 127.0.0.1:5353`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd) },
	}
	flags := cmd.Flags()
	c.RegisterSource(flags)
	cli.Group(flags, "Source of Services")
	flags.StringVar(&c.socks, "socks", defaultSOCKSAddress, "Listen address `host:port` of a SOCKS5 and HTTP proxy that resolves Service names and connects to all other destinations directly. Without a host: 127.0.0.1. Empty = none")
	c.names.register(flags)
	cli.Group(flags, "Names of Services")
	c.via.register(flags, viaPortForward)
	flags.Lookup("via").Usage += ". portforward and auto change the default of --dial-timeouts to 2s,2s,4s"
	cli.Group(flags, config.GroupEndpoints)
	c.RegisterNode(flags)
	flags.Lookup("service-proxy-name").Usage = serve.ProxyNameUsage + "all Services"
	flags.Lookup("node-name").Usage = "Name of this node's Node object. Empty = this machine is not a node or, with --via=direct, the hostname"
	cli.Group(flags, "This node and what it serves")
	c.RegisterTakeOver(flags)
	c.RegisterTrace(flags, "output")
	cli.Group(flags, "Restarts and tracing")
	c.RegisterProxy(flags)
	cli.SetDefault(flags, "portal", "none")
	c.RegisterServers(flags)
	cli.SetDefault(flags, "healthz-address", "")
	c.Logs.Register(flags, "auto")
	cli.Group(flags, "Logs")
	cli.MainFlags(cmd, "manifests", "kubeconfig", "context", "socks", "dns", "dns-domain", "dns-upstream", "via", "node-name", "node-labels", "take-over", "trace",
		"portal", "proxy-port-range", "dial-timeouts", "scheduler", "admin-address", "access-log", "log-level", "log-format")
	return cmd
}

type connectCommand struct {
	serve.Flags
	via   viaFlag
	names nameFlags
	socks string
}

func (c *connectCommand) run(cmd *cobra.Command) error {
	if err := c.complete(cmd); err != nil {
		return err
	}
	c.OnReady = func(now daemon.Ready) { serve.PrintTable(cmd.OutOrStdout(), now.Proxy.Status()) }
	if c.Trace {
		c.OnTrace = serve.PrintTrace(cmd.OutOrStdout())
	}
	d, err := c.NewDaemon(cmd)
	if err != nil {
		return err
	}
	return serve.Run(cmd, d, serve.ClosedTerminal())
}

// complete checks the flags, sets defaults that depend on other flags, and creates the servers.
func (c *connectCommand) complete(cmd *cobra.Command) error {
	if err := c.OneSource(); err != nil {
		return err
	}
	if err := c.via.complete(&c.Flags, cmd.Flags()); err != nil {
		return err
	}
	c.Cluster.AsUser = true
	if c.ServiceProxyName == "" {
		c.ServiceProxyName = translate.AnyProxy
	}
	if err := c.Complete(cmd); err != nil {
		return err
	}
	if c.NodeName == "" && !c.via.remote() {
		var err error
		if c.NodeName, err = serve.Hostname(); err != nil {
			return err
		}
	}
	for _, warning := range cli.Deprecations(cmd.Flags()) {
		c.Log.Warn(warning)
	}
	c.names.options.Log = c.Log
	names, err := c.names.server()
	if err != nil {
		return err
	}
	if names != nil { // otherwise Names would be a non-nil interface
		c.Names = names
	}
	if c.socks == "" {
		return nil
	}
	server, err := laptop.NewSOCKS(c.socks, c.names.options.Domain)
	if err != nil {
		return cli.Usage(err)
	}
	server.HalfClosed = c.Policy.HalfClosedTimeout
	c.SOCKS = server
	return nil
}
