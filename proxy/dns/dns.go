package dns

import (
	"fmt"
	"io"
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
	DefaultTTL        = 5 * time.Second
	DefaultResolvConf = "/etc/resolv.conf"
)

// Options are what a Server is made of. The zero value is that of a cluster as
// kubeadm makes it.
type Options struct {
	// Domain is the cluster's, in which all Services are; "" means
	// DefaultDomain.
	Domain string

	// TTL is how long clients may keep an answer, in whole seconds; 0 means
	// DefaultTTL.
	TTL time.Duration

	// Upstreams are the resolvers that are asked for names of others, in this
	// order. None means those that ResolvConf names.
	Upstreams []netip.AddrPort
	// ResolvConf is a resolv.conf(5) file, which is read again when it changes;
	// "" means DefaultResolvConf.
	ResolvConf string

	// Self is where the Server is reached by programs in this network namespace;
	// the zero AddrPort if it is not. An upstream that is the Server itself is
	// passed over, so that no query goes in a circle.
	Self netip.AddrPort

	// Log is told when no upstream answers, and when one does again. Nil means
	// nobody is.
	Log logrus.FieldLogger
}

// Server answers queries. All of its methods may be called by any goroutine.
type Server struct {
	zone      *zone
	upstreams *upstreams
	counts    counts
}

// New returns a Server that knows no Service yet: until the first Apply it answers
// SERVFAIL for names of the cluster, so that nobody believes that they do not
// exist.
func New(o Options) (*Server, error) {
	domain, err := ParseDomain(o.Domain)
	if err != nil {
		return nil, err
	}
	if o.TTL == 0 {
		o.TTL = DefaultTTL
	}
	if o.ResolvConf == "" {
		o.ResolvConf = DefaultResolvConf
	}
	if o.Log == nil {
		silent := logrus.New()
		silent.SetOutput(io.Discard)
		o.Log = silent
	}
	return &Server{
		zone:      newZone(domain, uint32(o.TTL/time.Second)),
		upstreams: newUpstreams(o),
	}, nil
}

// ParseDomain returns a cluster's domain in the form that the rest of this package
// uses: in lower case, with a dot at its end. "" is DefaultDomain.
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

// Apply takes note of Services as a config.Source hands them over: the first call
// holds all there are, a later one those that changed.
func (s *Server) Apply(services []config.Service) { s.zone.apply(services, time.Now()) }

// Domain returns the cluster's domain, without a dot at its end.
func (s *Server) Domain() string { return strings.TrimSuffix(s.zone.domain, ".") }
