package serve

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/config/manifest"
	"github.com/usherproxy/usher/config/translate"
)

// Allocation are the flags for the addresses and ports of Services whose manifests set none. In a cluster, the control
// plane allocates them.
type Allocation struct {
	serviceCIDRs  []string
	nodePorts     string
	balancerCIDRs []string
}

// Register registers the flags.
func (f *Allocation) Register(flags *pflag.FlagSet) {
	flags.StringSliceVar(&f.serviceCIDRs, "service-cidr", []string{manifest.DefaultServiceCIDR.String()}, "`networks` for the cluster IPs of Services without one; at most one network per IP family")
	flags.StringVar(&f.nodePorts, "service-node-port-range", manifest.DefaultNodePorts.String(), "Port range `first-last` for node ports that manifests do not specify")
	flags.StringSliceVar(&f.balancerCIDRs, "load-balancer-ip-cidr", nil, "`networks` for the load balancer IPs of LoadBalancer Services in manifests, if they have none; at most one network per IP family. Empty = allocate none")
}

// Parse sets the fields of o from the flags, if they were registered.
func (f *Allocation) Parse(o *manifest.Options) (err error) {
	if f.serviceCIDRs == nil {
		return nil
	}
	if o.ServiceCIDRs, err = parseNetworks("--service-cidr", f.serviceCIDRs, 2); err != nil {
		return err
	}
	if len(o.ServiceCIDRs) == 0 {
		return cli.Usagef("--service-cidr: at least one network is required")
	}
	if o.LoadBalancerCIDRs, err = parseNetworks("--load-balancer-ip-cidr", f.balancerCIDRs, 2); err != nil {
		return err
	}
	o.NodePorts.First, o.NodePorts.Last, err = parsePorts("--service-node-port-range", f.nodePorts)
	return err
}

// parseNetworks parses the value of a flag with at most one network per IP family. Each has at least hostBits host bits.
// With host bits, its addresses become those of Services, so special ranges such as loopback are not allowed.
func parseNetworks(flag string, list []string, hostBits int) ([]netip.Prefix, error) {
	out, err := ParseCIDRs(list, flag+": invalid value %q: must be a CIDR such as 10.96.0.0/12")
	if err != nil {
		return nil, err
	}
	for i, p := range out {
		if p != p.Masked() {
			return nil, cli.Usagef("%s: invalid value \"%s\": host bits are set; did you mean %s?", flag, p, p.Masked())
		}
		for _, other := range out[:i] {
			if other.Addr().Is4() == p.Addr().Is4() {
				return nil, cli.Usagef("%s: \"%s\" and \"%s\" are of the same IP family: at most one network per IP family", flag, other, p)
			}
		}
		if p.Addr().Is4In6() {
			return nil, cli.Usagef("%s: invalid value \"%s\": must not be an IPv4-mapped IPv6 network", flag, p)
		}
		if detail := translate.SpecialAddress(p.Addr()); detail != "" && hostBits > 0 {
			return nil, cli.Usagef("%s: invalid value \"%s\": %s", flag, p, detail)
		}
		if p.Addr().BitLen()-p.Bits() < hostBits {
			return nil, cli.Usagef("%s: invalid value \"%s\": must hold at least %d addresses", flag, p, 1<<hostBits)
		}
	}
	return out, nil
}

// parsePorts parses "first-last", the value of a flag.
func parsePorts(flag, s string) (first, last uint16, err error) {
	from, to, _ := strings.Cut(s, "-")
	a, errA := strconv.ParseUint(from, 10, 16)
	b, errB := strconv.ParseUint(to, 10, 16)
	if errA != nil || errB != nil || a < 1 || a > b {
		return 0, 0, cli.Usagef("%s: invalid value %q: must be FIRST-LAST with ports from 1 to 65535", flag, s)
	}
	return uint16(a), uint16(b), nil
}
