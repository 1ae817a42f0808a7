package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/proxy/admin"
	"github.com/usherproxy/usher/proxy/admin/client"
)

func newReady() *cobra.Command {
	address := ":10256"
	cmd := &cobra.Command{
		Use:   "ready",
		Short: "Check that usher in this container is serving (readiness probe)",
		Long: `Queries /healthz, and exits with 0 if the responding usher instance is serving and runs
in the PID namespace of this command, that is, in the same container. During a DaemonSet
update, the old Pod holds the node's health port until the new Pod has taken over: an
HTTP probe would report the new Pod as ready too early.`,
		Example: `  kubectl -n kube-system exec ds/usher -- usher ready`,
		Args:    cli.NoArgs,
		RunE:    func(*cobra.Command, []string) error { return ready(address) },
	}
	cmd.Flags().StringVar(&address, "healthz-address", address, "Address `host:port` of usher's /healthz; the host may be empty")
	return cmd
}

// readyTimeout is less than the timeout of the shipped readiness probe (timeoutSeconds: 5).
const readyTimeout = 4 * time.Second

// ready returns the reason why usher in this PID namespace is not ready, or nil.
func ready(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return cli.Usagef("--healthz-address: %v", err)
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if ip.Is6() {
			host = "::1"
		}
	}
	// The client ignores the environment's HTTP proxy.
	local := http.Client{Timeout: readyTimeout, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := local.Get("http://" + net.JoinHostPort(host, port) + "/healthz")
	if err != nil {
		return fmt.Errorf("cannot query /healthz at %s: %s; usher is not running, is still starting, or has another --healthz-address", address, client.Cause(err))
	}
	defer res.Body.Close()
	var answer struct{ PIDNamespace string }
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		return fmt.Errorf("the server at %s is not usher: %w", address, err)
	}
	switch own := admin.PIDNamespace(); {
	case answer.PIDNamespace != own:
		return errors.New("the usher instance that serves on this node runs in another container; this one has not taken over yet")
	case res.StatusCode != http.StatusOK:
		return fmt.Errorf("usher is not serving: /healthz returned %s", res.Status)
	}
	return nil
}
