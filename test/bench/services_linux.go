package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/usherproxy/usher/test/bench/load"
	"github.com/usherproxy/usher/test/bench/report"
)

// many makes usher serve n Services of ten endpoints each. Clients connect to the last one. There is no UDP, and no
// sink.
func many(n int) func(peer) peer {
	return func(p peer) peer {
		u := p.usher
		p.set = func(s *stage, dir string) (targets, *process, error) {
			vips := following(vip, n)
			var text strings.Builder
			for i, v := range vips {
				fmt.Fprint(&text, serviceManifest(fmt.Sprintf("bench-%d", i+1), v))
			}
			if _, err := write(dir, "services.yaml", text.String()); err != nil {
				return targets{}, nil, err
			}
			process, err := u.start(s, dir)
			if err != nil {
				return targets{}, nil, err
			}
			// The table's first line: usher serves.
			_, err = process.line()
			return targets{echo: netip.AddrPortFrom(vips[n-1], echoPort)}, process, err
		}
		return p
	}
}

// services measures the time to start, memory, the time until a change is effective, and whether the last portal is as
// fast as the first.
func services(s *scene, o options) (report.Values, error) {
	settled, err := s.settled()
	if err != nil {
		return nil, err
	}
	v := report.Values{report.Start: s.readyAfter.Seconds(), report.Memory: float64(settled.resident)}
	took, err := s.add("added", s.echo.Addr().Next())
	if err != nil {
		return nil, err
	}
	v[report.Change] = float64(took) / float64(time.Millisecond)
	first, last, err := s.firstAndLast(o.each)
	if err != nil {
		return v, fmt.Errorf("crr through the first portal and the last: %w", err)
	}
	v[report.FirstRate], v[report.LastRate], v[report.LastFirst] = first, last, last/first
	return v, nil
}

// firstAndLast returns crr per second through the first portal and through the last. They alternate in an order that
// favors neither.
func (s *scene) firstAndLast(each time.Duration) (first, last float64, err error) {
	for _, turn := range []struct {
		to   netip.AddrPort
		rate *float64
	}{{onVIP.echo, &first}, {s.echo, &last}, {s.echo, &last}, {onVIP.echo, &first}} {
		out, _, err := s.drive(load.Spec{Kind: load.CRR, To: turn.to, Clients: 64, Size: message, Warm: warm, For: each / 2})
		if err != nil {
			return 0, 0, err
		}
		*turn.rate += float64(out.Done) / out.Seconds / 2
	}
	return first, last, nil
}

// add adds a Service in a separate file, and returns the time until a client of its VIP is connected.
func (s *scene) add(name string, vip netip.Addr) (time.Duration, error) {
	// Written outside the folder and renamed: usher never reads a partial file.
	beside, err := write(filepath.Dir(s.dir), filepath.Base(s.dir)+".new", serviceManifest(name, vip))
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := os.Rename(beside, filepath.Join(s.dir, name+".yaml")); err != nil {
		return 0, err
	}
	to := netip.AddrPortFrom(vip, echoPort).String()
	for time.Since(began) < 30*time.Second {
		err = s.do(func() error {
			// Time out early: TCP would retransmit a SYN that was sent too early only after a second.
			conn, err := net.DialTimeout("tcp4", to, 5*time.Millisecond)
			if err == nil {
				conn.Close()
			}
			return err
		})
		if err == nil {
			return time.Since(began), nil
		}
		time.Sleep(time.Millisecond)
	}
	return 0, errors.Join(fmt.Errorf("the Service that was added is not there after 30 s"), err)
}

// serviceManifest returns a Service with all addresses of the endpoint.
func serviceManifest(name string, vip netip.Addr) string {
	var addresses []string
	for _, a := range following(endpoint, endpoints) {
		addresses = append(addresses, fmt.Sprintf("{addresses: [%s]}", a))
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %s, namespace: default}
spec: {clusterIP: %s, ports: [{name: echo, port: %d}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s, namespace: default, labels: {kubernetes.io/service-name: %s}}
addressType: IPv4
ports: [{name: echo, port: %d}]
endpoints: [%s]
---
`, name, vip, echoPort, name, name, echoTarget, strings.Join(addresses, ", "))
}
