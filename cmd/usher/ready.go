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
)

func newReady() *cobra.Command {
	address := ":10256"
	cmd := &cobra.Command{
		Use:   "ready",
		Short: "Check that the usher of this container serves, as a readiness probe",
		Long: `Asks /healthz, and exits with 0 if the usher that answers serves and runs in the PID
namespace of this command, as in the same container. While a DaemonSet is updated,
the health port of the node is that of the old Pod's usher until the new one has taken
over: a probe by HTTP would find the new Pod ready too early.`,
		Example: `  kubectl -n kube-system exec ds/usher -- usher ready`,
		Args:    cli.NoArgs,
		RunE:    func(*cobra.Command, []string) error { return ready(address) },
	}
	cmd.Flags().StringVar(&address, "healthz-address", address, "where usher serves /healthz: `host:port`, of which the host may be empty")
	return cmd
}

// readyTimeout is less than the timeout of the shipped readiness probe.
const readyTimeout = 4 * time.Second

// ready returns why the usher of this PID namespace is not ready, or nil.
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
	client := http.Client{Timeout: readyTimeout, Transport: &http.Transport{DisableKeepAlives: true}} // no proxy
	res, err := client.Get("http://" + net.JoinHostPort(host, port) + "/healthz")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var answer struct{ PIDNamespace string }
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		return fmt.Errorf("what answers at %s is not usher: %w", address, err)
	}
	switch own := admin.PIDNamespace(); {
	case answer.PIDNamespace != own:
		return errors.New("the usher that serves on this node runs in another container; this one has not taken over yet")
	case res.StatusCode != http.StatusOK:
		return fmt.Errorf("usher does not serve: /healthz answered %s", res.Status)
	}
	return nil
}
