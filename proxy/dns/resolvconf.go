package dns

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// ndots is that of a Pod: names with fewer dots are looked up in the search domains first, so that even
// web.default.svc is found there (kubelet, the DNS policy ClusterFirst).
const ndots = 5

// PodResolvConf returns the resolv.conf(5) of a Pod in a namespace. It queries nameservers, and searches the
// namespace, all Services, the cluster's domain, and then this machine's search domains.
func (s *Server) PodResolvConf(namespace string, nameservers ...netip.Addr) string {
	search := []string{namespace + ".svc." + s.Domain(), "svc." + s.Domain(), s.Domain()}
	if c, err := dns.ClientConfigFromFile(s.upstreams.file.path); err == nil {
		// A dot stands for names as they are, which are looked up in any case.
		search = append(search, slices.DeleteFunc(c.Search, func(s string) bool { return s == "." })...)
	}
	var b strings.Builder
	for _, a := range nameservers {
		fmt.Fprintf(&b, "nameserver %s\n", a)
	}
	fmt.Fprintf(&b, "search %s\noptions ndots:%d\n", strings.Join(search, " "), ndots)
	return b.String()
}

// Nameservers returns the resolvers of a resolv.conf(5) file: addresses, or, as on OpenBSD, [address]:port.
// It skips anything else, as libc does.
func Nameservers(path string) ([]netip.AddrPort, error) {
	c, err := dns.ClientConfigFromFile(path)
	if err != nil {
		return nil, err
	}
	var out []netip.AddrPort
	for _, s := range c.Servers {
		if a, err := ParseServer(s); err == nil {
			out = append(out, a)
		}
	}
	return out, nil
}

// defaultPort is the port of a resolver without one.
const defaultPort = 53

// ParseServer parses an address with or without a port; the default is 53.
func ParseServer(s string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.AddrPortFrom(a, defaultPort), nil
	}
	host, port, err := net.SplitHostPort(s)
	a, errAddr := netip.ParseAddr(host)
	n, errPort := strconv.ParseUint(port, 10, 16)
	if errors.Join(err, errAddr, errPort) != nil || n == 0 {
		return netip.AddrPort{}, fmt.Errorf("invalid value %q: must be an address such as 192.0.2.53, 2001:db8::53 or 192.0.2.53:5353", s)
	}
	return netip.AddrPortFrom(a, uint16(n)), nil
}

// lookInterval is the shortest interval for checking whether a file has changed.
const lookInterval = time.Second

// resolvConf is the state of a file at the last check.
type resolvConf struct {
	path   string
	looked time.Time
	info   fs.FileInfo // nil if it did not exist
}

// changed reports whether the file has changed since the last call that checked it. The first call returns true. A
// call within lookInterval of the last check returns false, and does not check.
func (r *resolvConf) changed(now time.Time) bool {
	if !r.looked.IsZero() && now.Sub(r.looked) < lookInterval {
		return false
	}
	first, before := r.looked.IsZero(), r.info
	r.looked = now
	r.info, _ = os.Stat(r.path)
	switch {
	case first:
		return true
	case before == nil || r.info == nil:
		return before != r.info
	}
	return !os.SameFile(before, r.info) || before.ModTime() != r.info.ModTime() || before.Size() != r.info.Size()
}
