package main

import (
	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/internal/serve"
	"github.com/usherproxy/usher/cmd/kubectl-usher/laptop"
	"github.com/usherproxy/usher/cmd/usher/daemon"
)

func newConnect() *cobra.Command { return newConnectOf(&connectCommand{Flags: serve.New()}) }

func newConnectOf(c *connectCommand) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "connect",
		Short: "Make a cluster's Services reachable for the programs of this machine",
		Long: `Serves the Services of an API server, by the kubeconfig that kubectl would use, or of
files and folders (--manifests), on this machine, until Ctrl-C. Programs reach them

- by name, through a proxy for SOCKS5 and HTTP (--socks): 'kubectl usher proxy-env'
  prints the environment that makes programs use it;
- at the addresses of the table that it prints once it serves;
- at their cluster IPs, as root, with --portal=auto.

--dns answers for the names of Services, for resolvers of this machine. Endpoints are
reached through the API server, with your own rights: see --via.

'kubectl usher exec' does without all of that for one command (Linux).`,
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
	flags.StringVar(&c.socks, "socks", defaultSOCKSAddress, "`host:port` for a proxy, SOCKS5 and HTTP, that leads to Services by name, and to everything else directly; without a host 127.0.0.1; empty means none")
	c.names.register(flags)
	cli.Group(flags, "Names of Services")
	c.via.register(flags, viaPortForward)
	cli.Group(flags, serve.EndpointGroup)
	c.RegisterNode(flags)
	flags.Lookup("node-name").Usage = "name of this node's Node object; empty means that this machine is no node or, with --via=direct, this machine's name"
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

// complete checks the flags, and fills in what follows from others.
func (c *connectCommand) complete(cmd *cobra.Command) error {
	if err := c.OneSource(); err != nil {
		return err
	}
	if err := c.via.complete(&c.Flags, cmd.Flags()); err != nil {
		return err
	}
	c.Cluster.AsUser = true
	if err := c.Complete(cmd); err != nil {
		return err
	}
	if c.NodeName == "" && !c.via.remote() {
		var err error
		if c.NodeName, err = serve.Hostname(); err != nil {
			return err
		}
	}
	c.names.options.Log = c.Log
	names, err := c.names.server()
	if err != nil {
		return err
	}
	if names != nil { // else Names would not be nil
		c.Names = names
	}
	if c.socks == "" {
		return nil
	}
	if c.SOCKS, err = laptop.NewSOCKS(c.socks); err != nil {
		return cli.Usage(err)
	}
	return nil
}
