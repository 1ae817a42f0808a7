package serve

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/config/manifest"
)

// Allocation say what Services of manifests are given if they name none: what a control plane
// gives in a cluster.
type Allocation struct {
	serviceCIDRs  []string
	nodePorts     string
	balancerCIDRs []string
}

// Register registers the flags.
func (f *Allocation) Register(flags *pflag.FlagSet) {
	flags.StringSliceVar(&f.serviceCIDRs, "service-cidr", []string{manifest.DefaultServiceCIDR.String()}, "where Services without a cluster IP get one, for each IP family at most one network")
	flags.StringVar(&f.nodePorts, "service-node-port-range", manifest.DefaultNodePorts.String(), "`first-last` ports for Services of manifests that want a node port and name none")
	flags.StringSliceVar(&f.balancerCIDRs, "load-balancer-ip-cidr", nil, "where Services of manifests of type LoadBalancer without an IP of a load balancer get one, for each IP family at most one `network`; empty means that they get none")
}

// Parse fills in what the flags say, if they were registered.
func (f *Allocation) Parse(o *manifest.Options) (err error) {
	if f.serviceCIDRs == nil {
		return nil
	}
	if o.ServiceCIDRs, err = parseNetworks("--service-cidr", f.serviceCIDRs); err != nil {
		return err
	}
	if len(o.ServiceCIDRs) == 0 {
		return cli.Usagef("--service-cidr: at least one is needed")
	}
	if o.LoadBalancerCIDRs, err = parseNetworks("--load-balancer-ip-cidr", f.balancerCIDRs); err != nil {
		return err
	}
	o.NodePorts.First, o.NodePorts.Last, err = parsePorts("--service-node-port-range", f.nodePorts)
	return err
}

// parseNetworks parses the value of a flag that names at most one network of each IP family.
func parseNetworks(flag string, list []string) ([]netip.Prefix, error) {
	out, err := ParseCIDRs(list, flag+": %q is not a CIDR such as 10.96.0.0/12")
	if err != nil {
		return nil, err
	}
	for i, p := range out {
		if p != p.Masked() {
			return nil, cli.Usagef("%s: %s has bits beyond its prefix; %s is meant, perhaps", flag, p, p.Masked())
		}
		for _, other := range out[:i] {
			if other.Addr().Is4() == p.Addr().Is4() {
				return nil, cli.Usagef("%s: %s and %s are of the same IP family; there is one for each", flag, other, p)
			}
		}
		if p.Addr().BitLen()-p.Bits() < 2 {
			return nil, cli.Usagef("%s: %s is too small; there must be room for 4 addresses or more", flag, p)
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
		return 0, 0, cli.Usagef("%s: %q is not FIRST-LAST with ports from 1 to 65535", flag, s)
	}
	return uint16(a), uint16(b), nil
}
