package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/usherproxy/usher/test/bench/load"
)

// The ports of the VIP that a peer serves, and those of the endpoint behind it.
const (
	echoPort, echoTarget = 80, 8080
	sinkPort, sinkTarget = 81, 8081
	udpPort, udpTarget   = 82, 8082
)

// targets are the addresses that clients connect to.
type targets struct {
	echo, sink, udp netip.AddrPort
}

var (
	onVIP      = at(vip, echoPort, sinkPort, udpPort)            // for clients of a proxy
	onEndpoint = at(endpoint, echoTarget, sinkTarget, udpTarget) // where the endpoint listens
)

func at(a netip.Addr, echo, sink, udp uint16) targets {
	return targets{netip.AddrPortFrom(a, echo), netip.AddrPortFrom(a, sink), netip.AddrPortFrom(a, udp)}
}

// peer stands between clients and the endpoint.
type peer struct {
	name   string
	noUDP  bool
	kernel bool         // there is no process
	usher  *usherPortal // nil for others
	// figures are those for which the peer exists; nil means all.
	figures []string
	// set sets up the peer on the stage; dir is for its files. The process is nil if there is none.
	set func(s *stage, dir string) (targets, *process, error)
}

// allPeers returns all peers, in the order in which they are measured. usher is the path of the binary, second that of
// another HAProxy; "" for none.
func allPeers(usher, second string) []peer {
	peers := []peer{direct, dnat, haproxy}
	if second != "" {
		peers = append(peers, haproxyPeer("haproxy-2", second))
	}
	peers = append(peers, nginx, behind("nftables"), behind("iptables"))
	for _, portal := range []string{"none", "nftables", "iptables", "address"} {
		peers = append(peers, newUsher(usher, portal))
	}
	return peers
}

// scene is a stage with the endpoint and a peer in front of it, both ready.
type scene struct {
	*stage
	targets
	proxy *process // nil for the kernel
	end   *process
	dir   string
	loops int // threads of clients, and of the endpoint

	readyAfter time.Duration // from the start of the proxy to a client's first answer
}

// setScene creates a scene. The caller must close it.
func setScene(p peer, o options) (s *scene, err error) {
	s = &scene{loops: o.loops}
	if s.dir, err = os.MkdirTemp("", "usher-bench-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.close()
			err = fmt.Errorf("%s: %w", p.name, err)
		}
	}()
	if s.stage, err = newStage(o.congestion); err != nil {
		return s, err
	}
	if s.end, err = s.startEndpoint(o.loops); err != nil {
		return s, err
	}
	if s.targets, s.proxy, err = p.set(s.stage, s.dir); err != nil {
		return s, err
	}
	if err = s.awaitAnswer(); err != nil {
		return s, err
	}
	if s.proxy != nil {
		s.readyAfter = time.Since(s.proxy.started)
	}
	return s, nil
}

func (s *scene) close() {
	for _, p := range []*process{s.proxy, s.end} {
		if p != nil {
			p.stop()
		}
	}
	if s.stage != nil {
		s.stage.close()
	}
	os.RemoveAll(s.dir)
}

// awaitAnswer waits until a client gets an answer from the endpoint.
func (s *scene) awaitAnswer() error {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		err := s.do(func() error {
			conn, err := load.Exchange(s.echo, []byte("?"))
			if err != nil {
				return err
			}
			return conn.Close()
		})
		if err == nil || time.Now().After(deadline) {
			return err
		}
		if s.proxy != nil {
			if err := s.proxy.running(); err != nil {
				return err
			}
		}
	}
}

// write writes a configuration file and returns its path.
func write(dir, name, text string) (string, error) {
	path := filepath.Join(dir, name)
	return path, os.WriteFile(path, []byte(text), 0o644)
}
