package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/kubectl-usher/laptop"
)

// defaultSOCKSAddress has the conventional port of SOCKS servers (RFC 1928).
const defaultSOCKSAddress = "127.0.0.1:1080"

func newProxyEnv() *cobra.Command {
	var address string
	cmd := &cobra.Command{
		Use:   "proxy-env",
		Short: "Print variables that direct programs to 'kubectl usher connect'",
		Long: `Prints shell commands that set proxy environment variables. Programs that read them
(curl, wget, Git, Python, Go programs, Node.js) then connect through the HTTP proxy of
'kubectl usher connect' and reach Services by name. It queries nothing and changes
nothing.`,
		Example: `  kubectl usher connect --context staging &
  eval "$(kubectl usher proxy-env)"
  curl http://web.default/`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := laptop.NewSOCKS(address, ""); err != nil {
				return cli.Usage(err)
			}
			for _, line := range proxyEnv(address) {
				fmt.Fprintln(cmd.OutOrStdout(), "export "+line)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&address, "socks", defaultSOCKSAddress, "Address `host:port` of the proxy")
	return cmd
}

// proxyEnv returns the variables, as NAME=value. Programs read different variables, in upper or lower case. They all
// support HTTP proxies, but few support socks5h.
func proxyEnv(address string) (list []string) {
	if strings.HasPrefix(address, ":") {
		address = "127.0.0.1" + address
	}
	for _, name := range []string{"ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY"} {
		list = append(list, name+"=http://"+address, strings.ToLower(name)+"=http://"+address)
	}
	// Without ::1: some releases of Python's httpx cannot parse it. usher's proxy also connects to ::1.
	return append(list, "NO_PROXY=localhost,127.0.0.1", "no_proxy=localhost,127.0.0.1", "NODE_USE_ENV_PROXY=1")
}
