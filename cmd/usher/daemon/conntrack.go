package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
)

// conntrackDir is where the kernel has the settings of connection tracking
// (Documentation/networking/nf_conntrack-sysctl.rst).
const conntrackDir = "/proc/sys/net/netfilter"

// maxConntrack is as far as kube-proxy raises nf_conntrack_max for the number of
// processors.
const maxConntrack = 1 << 20

// Conntrack are settings of the kernel's connection tracking, for the whole
// node. What is 0 stays as it is.
type Conntrack struct {
	// MaxPerCore and Min say for how many connections there must be room: so many for
	// each processor, and in all at the least.
	MaxPerCore, Min int
	// How long an entry lasts in which nothing moves, in whole seconds.
	TCPEstablished, TCPCloseWait, UDP, UDPStream time.Duration
	// TCPBeLiberal says to track TCP segments outside of the window too.
	TCPBeLiberal bool
}

// SetConntrack makes the kernel's connection tracking what c says, as kube-proxy
// does. The error names all that cannot be written.
func SetConntrack(c Conntrack, log logrus.FieldLogger) error {
	return c.write(conntrackDir, nodeProcessors("/sys/devices/system/cpu/online"), log)
}

// nodeProcessors returns how many processors the node has online, by a list such as 0-3,6
// (Documentation/ABI/testing/sysfs-devices-system-cpu). The process itself may be bound to fewer.
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
	write("nf_conntrack_max", c.maximum(processors))
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

// maximum returns how many entries there must be room for: twice what
// kube-proxy would have, since a connection through usher is two, the client's and
// that to the endpoint. 0 leaves it as it is.
func (c Conntrack) maximum(processors int) int {
	if c.MaxPerCore == 0 {
		return 0
	}
	return 2 * max(min(c.MaxPerCore*processors, maxConntrack), min(c.Min, maxConntrack))
}
