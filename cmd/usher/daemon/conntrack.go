package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/proxy/admin/api"
)

// conntrackDir contains the kernel's settings of connection tracking
// (Documentation/networking/nf_conntrack-sysctl.rst).
const conntrackDir = "/proc/sys/net/netfilter"

// maxConntrack is the upper bound for the nf_conntrack_max that kube-proxy would set.
const maxConntrack = 1 << 20

// Conntrack configures the kernel's connection tracking, for the whole node. A value of 0 leaves the kernel's setting
// unchanged.
type Conntrack struct {
	// MaxPerCore and Min size the table: MaxPerCore connections for each CPU, at least
	// Min in total.
	MaxPerCore, Min int
	// Lifetimes of idle entries, in whole seconds.
	TCPEstablished, TCPCloseWait, UDP, UDPStream time.Duration
	// TCPBeLiberal accepts TCP segments outside of the window, except resets.
	TCPBeLiberal bool
}

// DefaultConntrack has kube-proxy's defaults, for settings that its configuration omits
// (k8s.io/kubernetes/pkg/proxy/apis/config/v1alpha1/defaults.go).
var DefaultConntrack = Conntrack{MaxPerCore: 32 * 1024, Min: 128 * 1024, TCPEstablished: 24 * time.Hour, TCPCloseWait: time.Hour}

// SetConntrack applies c to the kernel's connection tracking, as kube-proxy
// does. The error names all settings that cannot be written. A kernel without connection
// tracking is no error.
func SetConntrack(c Conntrack, log logrus.FieldLogger) error {
	if c == (Conntrack{}) {
		return nil
	}
	kernel.LoadConntrack()
	return c.write(conntrackDir, processors(), log)
}

// setConntrack applies the settings; an init container may have done so before. Without explicit settings, it does
// nothing for a portal that does not redirect.
func (d *Daemon) setConntrack(pt portal.Portal) {
	c := d.config.Conntrack
	if c == DefaultConntrack && !pt.Traits().Redirects {
		return
	}
	d.conntrack = c.byName(processors())
	if err := SetConntrack(c, d.log); err != nil {
		d.log.WithError(err).Warn("Cannot change connection tracking settings; run 'usher run --init-only' with the same flags, as root and with a writable /proc/sys")
	}
}

// processors returns the number of CPUs of the node.
func processors() int { return nodeProcessors("/sys/devices/system/cpu/online") }

// sysctl is a setting in conntrackDir.
type sysctl struct {
	name  string
	value int
}

// sysctls returns the settings of c for this number of CPUs. api.RaisedOnly reports which are never lowered.
func (c Conntrack) sysctls(processors int) (all []sysctl) {
	add := func(name string, value int) {
		if value != 0 {
			all = append(all, sysctl{name, value})
		}
	}
	maximum := c.maximum(processors)
	add("nf_conntrack_max", maximum)
	add("nf_conntrack_buckets", maximum/4)
	add("nf_conntrack_tcp_timeout_established", int(c.TCPEstablished/time.Second))
	add("nf_conntrack_tcp_timeout_close_wait", int(c.TCPCloseWait/time.Second))
	add("nf_conntrack_udp_timeout", int(c.UDP/time.Second))
	add("nf_conntrack_udp_timeout_stream", int(c.UDPStream/time.Second))
	if c.TCPBeLiberal {
		add("nf_conntrack_tcp_be_liberal", 1)
	}
	return all
}

// byName returns the settings as a map.
func (c Conntrack) byName(processors int) map[string]int {
	all := map[string]int{}
	for _, s := range c.sysctls(processors) {
		all[s.name] = s.value
	}
	return all
}

// nodeProcessors returns the number of the node's online CPUs, from a list such as 0-3,6
// (Documentation/ABI/testing/sysfs-devices-system-cpu). The process itself may be limited to fewer.
func nodeProcessors(path string) (n int) {
	text, _ := os.ReadFile(path)
	for part := range strings.SplitSeq(strings.TrimSpace(string(text)), ",") {
		first, last, several := strings.Cut(part, "-")
		a, err1 := strconv.Atoi(first)
		b, err2 := strconv.Atoi(last)
		switch {
		case err1 == nil && !several:
			n++
		case err1 == nil && err2 == nil && b >= a:
			n += b - a + 1
		default:
			return runtime.NumCPU()
		}
	}
	return n
}

func (c Conntrack) write(dir string, processors int, log logrus.FieldLogger) error {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		log.Info("Kernel connection tracking is not loaded; skipping its settings")
		return nil
	}
	var failed []string
	for _, s := range c.sysctls(processors) {
		path := filepath.Join(dir, s.name)
		text, err := os.ReadFile(path)
		now, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		switch {
		case err == nil && (now == s.value || api.RaisedOnly(s.name) && now > s.value): // other programs may need more
			continue
		case err == nil:
			err = os.WriteFile(path, []byte(strconv.Itoa(s.value)), 0o644)
		}
		if err != nil {
			failed = append(failed, fmt.Sprintf("%s=%d (%v)", s.name, s.value, err))
			continue
		}
		log.WithFields(logrus.Fields{"setting": s.name, "from": now, "to": s.value}).Info("Changed a connection tracking setting")
	}
	if len(failed) > 0 {
		return fmt.Errorf("set connection tracking settings: %s", strings.Join(failed, ", "))
	}
	return nil
}

// maximum returns the required size of the table: twice kube-proxy's number, since a
// connection through usher has two entries, the client's and the one to the endpoint. 0
// leaves it unchanged.
func (c Conntrack) maximum(processors int) int {
	if c.MaxPerCore == 0 {
		return 0
	}
	return 2 * max(min(c.MaxPerCore*processors, maxConntrack), min(c.Min, maxConntrack))
}
