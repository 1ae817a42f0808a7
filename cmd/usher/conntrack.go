package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/cmd/usher/daemon/kubeproxy"
)

// conntrackDir is where the kernel has the settings of connection tracking
// (Documentation/networking/nf_conntrack-sysctl.rst).
const conntrackDir = "/proc/sys/net/netfilter"

// maxConntrack is as far as kube-proxy raises nf_conntrack_max for the number of
// processors.
const maxConntrack = 1 << 20

// applyConntrack makes the kernel's connection tracking what a configuration says,
// as kube-proxy does. The error names all that cannot be written.
func applyConntrack(dir string, c kubeproxy.Conntrack, processors int, log logrus.FieldLogger) error {
	var failed []string
	write := func(name string, value int) {
		if value == 0 {
			return
		}
		path := filepath.Join(dir, name)
		text, err := os.ReadFile(path)
		now, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		switch {
		case err == nil && (now == value || name == "nf_conntrack_max" && now > value): // others may need more
			return
		case err == nil:
			err = os.WriteFile(path, []byte(strconv.Itoa(value)), 0o644)
		}
		if err != nil {
			failed = append(failed, fmt.Sprintf("%s=%d (%v)", name, value, err))
			return
		}
		log.WithFields(logrus.Fields{"setting": name, "from": now, "to": value}).Info("Changed a setting of the kernel's connection tracking")
	}
	write("nf_conntrack_max", conntrackMax(c, processors))
	write("nf_conntrack_tcp_timeout_established", int(c.TCPEstablished/time.Second))
	write("nf_conntrack_tcp_timeout_close_wait", int(c.TCPCloseWait/time.Second))
	write("nf_conntrack_udp_timeout", int(c.UDP/time.Second))
	write("nf_conntrack_udp_timeout_stream", int(c.UDPStream/time.Second))
	if c.TCPBeLiberal {
		write("nf_conntrack_tcp_be_liberal", 1)
	}
	if len(failed) > 0 {
		return fmt.Errorf("settings of the kernel's connection tracking could not be made: %s", strings.Join(failed, ", "))
	}
	return nil
}

// conntrackMax returns how many entries there must be room for: twice what
// kube-proxy would have, since a connection through usher is two, the client's and
// that to the endpoint. 0 leaves it as it is.
func conntrackMax(c kubeproxy.Conntrack, processors int) int {
	if c.MaxPerCore == 0 {
		return 0
	}
	return 2 * max(min(c.MaxPerCore*processors, maxConntrack), min(c.Min, maxConntrack))
}

// conntrack applies what the file, or flags, say of connection tracking.
func (r *runCommand) applyConntrack(log logrus.FieldLogger) error {
	return applyConntrack(conntrackDir, r.conntrack, runtime.NumCPU(), log)
}
