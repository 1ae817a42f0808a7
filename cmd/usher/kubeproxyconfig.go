package main

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/usherproxy/usher/config/kubeproxy"
)

// readKubeProxyConfig makes what a KubeProxyConfiguration says the value of the
// flags that were not given. It returns warnings about what means nothing here.
func (r *runCommand) readKubeProxyConfig(flags *pflag.FlagSet, file string) (warnings []string, err error) {
	s, warnings, err := kubeproxy.Read(file)
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	r.cluster.AcceptContentTypes, r.cluster.ContentType = s.AcceptContentTypes, s.ContentType
	r.cluster.QPS, r.cluster.Burst = s.QPS, s.Burst
	r.resync = s.Resync
	r.nodeIP = s.NodeIP
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
			return nil, fmt.Errorf("--config: %s, for --%s: %w", file, flag, err)
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

// primary is the word for the node's primary addresses in --nodeport-addresses,
// as in kube-proxy's.
const primary = "primary"

// parseNodePortAddresses parses the value of --nodeport-addresses. As with
// kube-proxy, an IP family of which nothing is said is not restricted.
func parseNodePortAddresses(list []string, nodeIP netip.Addr) ([]netip.Prefix, error) {
	if len(list) == 0 {
		return nil, nil
	}
	var out []netip.Prefix
	if list[0] == primary && len(list) == 1 {
		out = primaryAddresses(nodeIP)
	} else {
		for _, s := range list {
			p, err := netip.ParsePrefix(s)
			if err != nil {
				return nil, usagef("--nodeport-addresses: %q is neither a CIDR such as 192.0.2.0/24 nor, alone, the word %q", s, primary)
			}
			out = append(out, p)
		}
	}
	var four, six bool
	for _, p := range out {
		four, six = four || p.Addr().Is4(), six || p.Addr().Is6()
	}
	if !four {
		out = append(out, netip.PrefixFrom(netip.IPv4Unspecified(), 0))
	}
	if !six {
		out = append(out, netip.PrefixFrom(netip.IPv6Unspecified(), 0))
	}
	return out, nil
}

// primaryAddresses returns this node's address in each IP family: nodeIP if that
// is given, and otherwise the one from which it would reach other networks.
func primaryAddresses(nodeIP netip.Addr) (out []netip.Prefix) {
	// Addresses for documentation (RFC 5737, RFC 3849). To connect a UDP socket
	// sends nothing.
	for _, elsewhere := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} {
		a := nodeIP
		if !a.IsValid() || a.Is4() != netip.MustParseAddrPort(elsewhere).Addr().Is4() {
			conn, err := net.Dial("udp", elsewhere)
			if err != nil {
				continue // no such family here
			}
			a = conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
			conn.Close()
		}
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return out
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
