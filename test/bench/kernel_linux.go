package main

import (
	"fmt"
	"os/exec"
)

// direct is no proxy at all: clients connect to the endpoint. Nothing can be
// faster, and if it is not much faster than a proxy, it is the clients or the
// endpoint that were measured.
var direct = peer{name: "direct", kernel: true, set: func(*stage, string) (targets, *process, error) {
	return onEndpoint, nil, nil
}}

// dnat is what kube-proxy's rules come down to: the kernel rewrites the
// destination. No userspace proxy can pass it.
var dnat = peer{name: "dnat", kernel: true, set: func(s *stage, _ string) (targets, *process, error) {
	for _, rule := range dnatRules() {
		var out []byte
		err := s.do(func() (err error) {
			out, err = exec.Command("iptables", rule...).CombinedOutput()
			return err
		})
		if err != nil {
			return targets{}, nil, fmt.Errorf("iptables %v: %w: %s", rule, err, out)
		}
	}
	return onVIP, nil, nil
}}

func dnatRules() (rules [][]string) {
	for _, r := range []struct {
		protocol     string
		port, target int
	}{{"tcp", echoPort, echoTarget}, {"tcp", sinkPort, sinkTarget}, {"udp", udpPort, udpTarget}} {
		rules = append(rules, []string{"-t", "nat", "-A", "OUTPUT", "-d", vip.String(), "-p", r.protocol, "--dport", fmt.Sprint(r.port),
			"-j", "DNAT", "--to-destination", fmt.Sprintf("%s:%d", endpoint, r.target)})
	}
	return rules
}
