package dns

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/usherproxy/usher/config"
)

// Defaults of Options.
const (
	DefaultDomain     = "cluster.local"
	DefaultResolvConf = "/etc/resolv.conf"
)

// Options configure a Server. The zero value suits a cluster made by kubeadm.
type Options struct {
	// Domain is the domain of the cluster's Services; "" means DefaultDomain.
	Domain string

	// Upstreams are the resolvers for external names, in this order. None means those of ResolvConf.
	Upstreams []netip.AddrPort
	// ResolvConf is a resolv.conf(5) file, which is reread when it changes; "" means DefaultResolvConf.
	ResolvConf string

	// Self is the Server's address for programs in this network namespace; the zero AddrPort if they cannot
	// reach it. An upstream that is the Server itself is skipped, so that queries do not loop.
	Self netip.AddrPort

	// Log receives problems with upstreams, and when they answer again. May be nil.
	Log logrus.FieldLogger
}

// Server answers queries. It is safe for concurrent use.
type Server struct {
	zone      *zone
	upstreams *upstreams
	counts    counts
}

// New returns a Server that knows no Service yet: until the first Apply it answers SERVFAIL for names in the
// cluster's domain, so that clients do not conclude that these names do not exist.
func New(o Options) (*Server, error) {
	domain, err := ParseDomain(o.Domain)
	if err != nil {
		return nil, err
	}
	if o.ResolvConf == "" {
		o.ResolvConf = DefaultResolvConf
	}
	if o.Log == nil {
		o.Log = &logrus.Logger{} // discards all
	}
	return &Server{
		zone:      newZone(domain),
		upstreams: newUpstreams(o),
		counts:    counts{of: map[[2]string]int64{}},
	}, nil
}

// ParseDomain returns a cluster's domain in the form used in this package: lower case, with a trailing dot.
// "" is DefaultDomain.
func ParseDomain(s string) (string, error) {
	if s == "" {
		s = DefaultDomain
	}
	domain := strings.ToLower(strings.TrimSuffix(s, "."))
	if wrong := validation.IsDNS1123Subdomain(domain); len(wrong) > 0 {
		return "", fmt.Errorf("%q is not a domain such as %s: %s", s, DefaultDomain, wrong[0])
	}
	return dns.Fqdn(domain), nil
}

// Apply records Services as passed by a config.Source: the first call holds all of them, later ones those
// that changed.
func (s *Server) Apply(services []config.Service) { s.zone.apply(services, time.Now()) }

// Domain returns the cluster's domain, without a trailing dot.
func (s *Server) Domain() string { return strings.TrimSuffix(s.zone.domain, ".") }
