package main

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/usherproxy/usher/cmd/usher/daemon/kubeproxy"
	"github.com/usherproxy/usher/portal"
)

// readKubeProxyConfig makes what a KubeProxyConfiguration, in a file and in flags of
// kube-proxy's, says the value of the flags that were not given. It returns warnings about what means nothing here.
func (r *runCommand) readKubeProxyConfig(flags *pflag.FlagSet, file string, given map[string]string) (warnings []string, err error) {
	s, warnings, err := kubeproxy.Read(file, given)
	switch {
	case err != nil && file == "":
		return nil, &usageError{err}
	case err != nil:
		return nil, fmt.Errorf("--config: %w", err)
	}
	r.cluster.AcceptContentTypes, r.cluster.ContentType = s.AcceptContentTypes, s.ContentType
	r.cluster.QPS, r.cluster.Burst = s.QPS, s.Burst
	r.resync = s.Resync
	r.nodeIP = s.NodeIP
	r.conntrack = s.Conntrack
	r.proxyFlags.podInterfaces = portal.Interfaces(s.PodInterfaces)
	for flag, value := range map[string]string{
		"kubeconfig":             s.Kubeconfig,
		"node-name":              s.NodeName,
		"healthz-address":        addrPort(s.HealthzAddress),
		"admin-address":          addrPort(s.MetricsAddress),
		"bind-address-hard-fail": yes(s.BindHardFail),
		"nodeport-addresses":     nodePorts(s.NodePorts),
		"cluster-cidr":           join(s.ClusterCIDRs),
		"proxy-port-range":       portRange(s.ProxyPorts),
		"log-level":              s.LogLevel,
		"log-format":             s.LogFormat,
		"portal":                 s.Portal,
		"portal-check-interval":  duration(s.CheckInterval),
		"max-sync-delay":         duration(s.MaxDelay),
	} {
		if value == "" || flags.Changed(flag) {
			continue
		}
		if err := flags.Set(flag, value); err != nil {
			return nil, fmt.Errorf("kube-proxy's configuration, for --%s: %w", flag, err)
		}
	}
	return warnings, nil
}

func addrPort(a netip.AddrPort) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func yes(b bool) string {
	if !b {
		return ""
	}
	return "true"
}

func duration(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}

func portRange(p kubeproxy.PortRange) string {
	if p.First == 0 {
		return ""
	}
	return fmt.Sprintf("%d-%d", p.First, p.Last)
}

func nodePorts(n kubeproxy.NodePorts) string {
	if n.Primary {
		return primary
	}
	return join(n.Networks)
}

func join(networks []netip.Prefix) string {
	var words []string
	for _, n := range networks {
		words = append(words, n.String())
	}
	return strings.Join(words, ",")
}

// parseClusterCIDRs parses the value of --cluster-cidr.
func parseClusterCIDRs(list []string) (out []netip.Prefix, err error) {
	for _, s := range list {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, usagef("--cluster-cidr: %q is not a CIDR such as 10.244.0.0/16", s)
		}
		out = append(out, p)
	}
	return out, nil
}
