package main

import (
	"fmt"
	"net/netip"
	"strings"
)

// usherPortal is usher with one of its portals, and otherwise its defaults.
type usherPortal struct{ binary, portal string }

func newUsher(binary, portal string) peer {
	u := &usherPortal{binary, portal}
	return peer{name: "usher-" + portal, usher: u, set: u.set}
}

// start starts usher for the manifests in dir.
func (u *usherPortal) start(s *stage, dir string) (*process, error) {
	return s.start(u.binary, "run", "--manifests", dir, "--portal", u.portal)
}

func (u *usherPortal) set(s *stage, dir string) (targets, *process, error) {
	if _, err := write(dir, "bench.yaml", usherManifest()); err != nil {
		return targets{}, nil, err
	}
	p, err := u.start(s, dir)
	if err != nil {
		return targets{}, nil, err
	}
	to, err := readTable(p)
	if u.portal != "none" {
		to = onVIP
	}
	return to, p, err
}

// readTable waits for the table that usher prints when it serves, and returns the addresses on which it listens.
func readTable(p *process) (targets, error) {
	var to targets
	places := map[string]*netip.AddrPort{"echo": &to.echo, "sink": &to.sink, "udp": &to.udp}
	for len(places) > 0 {
		line, err := p.line()
		if err != nil {
			return to, err
		}
		// default/bench  echo 80/TCP  10.96.0.10:80  127.0.0.1:36841  10.244.0.11:8080
		columns := strings.Fields(line)
		if len(columns) < 5 || columns[0] != "default/bench" {
			continue
		}
		place := places[columns[1]]
		if place == nil {
			return to, fmt.Errorf("usher serves what it was not asked to: %q", line)
		}
		if *place, err = netip.ParseAddrPort(columns[4]); err != nil {
			return to, fmt.Errorf("usher says %q: %w", line, err)
		}
		delete(places, columns[1])
	}
	return to, nil
}

func usherManifest() string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: bench, namespace: default}
spec:
  clusterIP: %s
  ports:
  - {name: echo, port: %d}
  - {name: sink, port: %d}
  - {name: udp, port: %d, protocol: UDP}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: bench, namespace: default, labels: {kubernetes.io/service-name: bench}}
addressType: IPv4
ports:
- {name: echo, port: %d}
- {name: sink, port: %d}
- {name: udp, port: %d, protocol: UDP}
endpoints: [{addresses: [%s]}]
`, vip, echoPort, sinkPort, udpPort, echoTarget, sinkTarget, udpTarget, endpoint)
}
