package lab

import (
	"os/exec"
	"regexp"
	"strings"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
)

// tryInput matches what the test of the host's firewall adds for a moment. While its device is being removed, ip(8)
// prints a number in place of its name.
const tryInput = `usher-try|\b192\.0\.0\.12\d\b|\bfd75:7368:6572::12\d\b`

// State returns everything that usher might change in a namespace: rules, routes and addresses. At its start usher makes
// a connection through a temporary interface to check whether a firewall blocks it; State waits until that has closed.
func State(ns *Namespace) (text string) {
	ginkgo.GinkgoHelper()
	gomega.Eventually(func() string {
		text = state(ns)
		return text
	}).WithTimeout(30 * time.Second).ShouldNot(gomega.MatchRegexp(tryInput))
	return text
}

// changing matches what changes by itself: comments with the time of day, packet and byte counts, and the lifetimes of
// routes. On a busy machine, ip(8) sometimes prints an error about "Peer netns reference" although it succeeds and its
// output is complete.
var changing = regexp.MustCompile(`(?m)^(#|Error: Peer netns).*\n| \[\d+:\d+\]$| (expires \d+sec|proto ra).*$`)

func state(ns *Namespace) string {
	ginkgo.GinkgoHelper()
	commands := [][]string{
		{"iptables-save"}, {"ip6tables-save"},
		{"ip", "route", "show", "table", "all"}, {"ip", "-6", "route", "show", "table", "all"},
		{"ip", "addr"}, {"ip", "rule"}, {"ip", "-6", "rule"},
	}
	if _, err := exec.LookPath("nft"); err == nil {
		commands = append(commands, []string{"nft", "--stateless", "list", "ruleset"})
	}
	var b strings.Builder
	for _, command := range commands {
		b.WriteString(changing.ReplaceAllString(ns.Output(command[0], command[1:]...), ""))
	}
	return b.String()
}
