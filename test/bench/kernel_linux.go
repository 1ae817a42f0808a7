package main

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
)

// direct has no proxy: clients connect to the endpoint. Nothing can be faster. If it is not much faster than a proxy,
// the clients or the endpoint limit the measurement.
var direct = peer{name: "direct", kernel: true, set: func(*stage, string) (targets, *process, error) {
	return onEndpoint, nil, nil
}}

// dnat is the effect of kube-proxy's rules: the kernel rewrites the destination. No userspace proxy can be faster.
var dnat = peer{name: "dnat", kernel: true, set: func(s *stage, _ string) (targets, *process, error) {
	return onVIP, nil, s.run(iptablesRules(onEndpoint))
}}

// run runs commands on the stage.
func (s *stage) run(commands []string) error {
	for _, command := range commands {
		words := strings.Fields(command)
		var out []byte
		err := s.do(func() (err error) {
			out, err = exec.Command(words[0], words[1:]...).CombinedOutput()
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w: %s", command, err, out)
		}
	}
	return nil
}

// iptablesRules are the commands that make the kernel redirect the VIP to targets.
func iptablesRules(to targets) []string {
	rule := func(protocol string, from, to netip.AddrPort) string {
		return fmt.Sprintf("iptables -t nat -A OUTPUT -d %s -p %s --dport %d -j DNAT --to-destination %s", from.Addr(), protocol, from.Port(), to)
	}
	return []string{rule("tcp", onVIP.echo, to.echo), rule("tcp", onVIP.sink, to.sink), rule("udp", onVIP.udp, to.udp)}
}

// nftablesRules are the commands of nft for that.
func nftablesRules(to targets) []string {
	rule := func(protocol string, from, to netip.AddrPort) string {
		return fmt.Sprintf("nft add rule ip bench output ip daddr %s %s dport %d dnat to %s", from.Addr(), protocol, from.Port(), to)
	}
	return []string{
		"nft add table ip bench", "nft add chain ip bench output { type nat hook output priority -100 ; }",
		rule("tcp", onVIP.echo, to.echo), rule("tcp", onVIP.sink, to.sink), rule("udp", onVIP.udp, to.udp),
	}
}
