package main

import (
	"fmt"
	"runtime"
)

// haproxyMax is HAProxy's maximum number of connections: it refuses to start if that exceeds what the open-files limit
// allows, which may be 20,000.
const haproxyMax = 4000

var haproxy = haproxyPeer("haproxy", "haproxy")

// haproxyPeer returns a version of HAProxy as a peer. It copies with splice(2) where it detects that this helps.
func haproxyPeer(name, program string) peer {
	return peer{name: name, noUDP: true, set: func(s *stage, dir string) (targets, *process, error) {
		if err := s.own(vip); err != nil {
			return targets{}, nil, err
		}
		p, err := s.startHAProxy(program, dir, onVIP)
		return onVIP, p, err
	}}
}

// elsewhere is where a proxy listens to which a rule redirects the VIP.
var elsewhere = at(node, 10080, 10081, 10082)

// behind returns HAProxy set up like usher with its netfilter portals: the kernel rewrites the VIP to an address on
// which it listens.
func behind(portal string) peer {
	p := haproxy
	p.name = "haproxy-" + portal
	p.figures = []string{"crr", "rr64"}
	p.set = func(s *stage, dir string) (targets, *process, error) {
		commands := iptablesRules(elsewhere)
		if portal == "nftables" {
			commands = nftablesRules(elsewhere)
		}
		if err := s.run(commands); err != nil {
			return targets{}, nil, err
		}
		p, err := s.startHAProxy("haproxy", dir, elsewhere)
		return onVIP, p, err
	}
	return p
}

func (s *stage) startHAProxy(program, dir string, on targets) (*process, error) {
	file, err := write(dir, "haproxy.cfg", haproxyConfig(runtime.NumCPU(), on))
	if err != nil {
		return nil, err
	}
	return s.start(program, "-db", "-f", file)
}

func haproxyConfig(threads int, on targets) string {
	return fmt.Sprintf(`global
  maxconn %d
  nbthread %d
defaults
  mode tcp
  option splice-auto
  timeout connect 5s
  timeout client 10m
  timeout server 10m
listen echo
  bind %s
  server endpoint %s
listen sink
  bind %s
  server endpoint %s
`, haproxyMax, threads, on.echo, onEndpoint.echo, on.sink, onEndpoint.sink)
}
