package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/utils/cpuset"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/proxy/admin/api"
)

// conntrackDir contains the kernel's settings of connection tracking
// (Documentation/networking/nf_conntrack-sysctl.rst).
const conntrackDir = "/proc/sys/net/netfilter"

// maxConntrack is usher's upper bound for kube-proxy's nf_conntrack_max, before usher doubles it.
const maxConntrack = 1 << 20

// Conntrack configures the kernel's connection tracking, for the whole node. A value of 0 leaves the kernel's setting
// unchanged.
type Conntrack struct {
	// MaxPerCore and Min size the table: MaxPerCore connections for each CPU, at least Min in total.
	MaxPerCore, Min int
	// Lifetimes of idle entries, in whole seconds.
	TCPEstablished, TCPCloseWait, UDP, UDPStream time.Duration
	// TCPBeLiberal accepts TCP segments outside of the window, except resets.
	TCPBeLiberal bool
}

// DefaultConntrack has kube-proxy's defaults, for settings that its configuration omits
// (k8s.io/kubernetes/pkg/proxy/apis/config/v1alpha1/defaults.go).
var DefaultConntrack = Conntrack{MaxPerCore: 32 * 1024, Min: 128 * 1024, TCPEstablished: 24 * time.Hour, TCPCloseWait: time.Hour}

// SetConntrack applies c to the kernel's connection tracking, as kube-proxy does. The error names all settings that
// cannot be written. A kernel without connection tracking is no error.
func SetConntrack(c Conntrack, log logrus.FieldLogger) error {
	if c == (Conntrack{}) {
		return nil
	}
	kernel.LoadConntrack()
	return c.write(conntrackDir, cpus(), log)
}

// setConntrack applies the settings; an init container may have done so before. Without explicit settings, it does
// nothing for a portal that does not redirect.
func (d *Daemon) setConntrack(pt portal.Portal) {
	c := d.config.Conntrack
	if c == DefaultConntrack && !pt.Traits().Redirects {
		return
	}
	d.conntrack = c.sysctls(cpus())
	if err := SetConntrack(c, d.log); err != nil {
		d.log.WithError(err).Warn("Cannot change connection tracking settings; run 'usher run --init-only' with the same flags, as root and with a writable /proc/sys")
	}
}

// cpus returns the number of CPUs of the node.
func cpus() int { return onlineCPUs("/sys/devices/system/cpu/online") }

// sysctls returns the settings of c for this number of CPUs, by name. It omits those to leave unchanged.
// api.RaisedOnly reports which are never lowered.
func (c Conntrack) sysctls(cpus int) map[string]int {
	all := map[string]int{
		"nf_conntrack_max":                     c.maximum(cpus),
		"nf_conntrack_buckets":                 c.maximum(cpus) / 4,
		"nf_conntrack_tcp_timeout_established": int(c.TCPEstablished / time.Second),
		"nf_conntrack_tcp_timeout_close_wait":  int(c.TCPCloseWait / time.Second),
		"nf_conntrack_udp_timeout":             int(c.UDP / time.Second),
		"nf_conntrack_udp_timeout_stream":      int(c.UDPStream / time.Second),
	}
	if c.TCPBeLiberal {
		all["nf_conntrack_tcp_be_liberal"] = 1
	}
	maps.DeleteFunc(all, func(_ string, value int) bool { return value == 0 })
	return all
}

// onlineCPUs returns the number of the node's online CPUs, from a list such as 0-3,6
// (Documentation/ABI/testing/sysfs-devices-system-cpu). The process itself may be limited to fewer.
func onlineCPUs(path string) int {
	text, _ := os.ReadFile(path)
	if online, err := cpuset.Parse(strings.TrimSpace(string(text))); err == nil && !online.IsEmpty() {
		return online.Size()
	}
	return runtime.NumCPU()
}

func (c Conntrack) write(dir string, cpus int, log logrus.FieldLogger) error {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		log.Info("Kernel connection tracking is not loaded; skipping its settings")
		return nil
	}
	var failed error
	all := c.sysctls(cpus)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		path, value := filepath.Join(dir, name), all[name]
		text, err := os.ReadFile(path)
		now, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		switch {
		case err == nil && (now == value || api.RaisedOnly(name) && now > value): // other programs may need more
			continue
		case err == nil:
			err = os.WriteFile(path, []byte(strconv.Itoa(value)), 0o644)
		}
		if err != nil {
			if err = fmt.Errorf("%s=%d (%w)", name, value, err); failed != nil {
				err = fmt.Errorf("%w, %w", failed, err)
			}
			failed = err
			continue
		}
		log.WithFields(logrus.Fields{"setting": name, "from": now, "to": value}).Info("Changed a connection tracking setting")
	}
	if failed != nil {
		return fmt.Errorf("set connection tracking settings: %w", failed)
	}
	return nil
}

// maximum returns the required size of the table: twice kube-proxy's number (bounded by maxConntrack). A connection
// through usher has two entries, the client's and the one to the endpoint. 0 leaves the size unchanged.
func (c Conntrack) maximum(cpus int) int {
	if c.MaxPerCore == 0 {
		return 0
	}
	return 2 * max(min(c.MaxPerCore*cpus, maxConntrack), min(c.Min, maxConntrack))
}
