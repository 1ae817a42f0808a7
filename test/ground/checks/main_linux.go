// Command checks runs about forty tasks of usher's users. It runs inside a ground (a container, an emulated machine, a
// chroot), starts the given usher binary and its own servers and clients, and prints a line of JSON for each check. It
// needs no file and no other program.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// result is the output of a check. Its reason is usher's message, or else the client's error.
type result struct {
	Check  string `json:"check"`
	OK     bool   `json:"ok"`
	Reason string `json:"reason,omitempty"`
	// Portal is the one that usher has selected.
	Portal string `json:"portal,omitempty"`
	// Seconds is the duration of the check.
	Seconds float64 `json:"seconds"`
}

var (
	usher    = flag.String("usher", "/usher", "path of usher")
	dir      = flag.String("dir", "/tmp", "folder for manifests")
	patience = flag.Duration("patience", 20*time.Second, "time in which something must happen")
	dialFor  = flag.String("dial-timeouts", "1s,1s,2s,2s", "usher's")
	debugLog = flag.Bool("debug", false, "print what usher logs")
	client   = flag.String("client", "", "host:port of a Service; print what it answers, and do nothing else")
)

func main() {
	flag.Parse()
	if *client != "" {
		answer, err := ask(*client)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(answer)
		return
	}
	debug.SetMemoryLimit(16 << 20)       // leave the rest of a ground's memory to usher
	if os.Getenv("usher_kernel") != "" { // this is the first process of a machine: see package vm
		*patience, *dialFor = 4**patience, "3s,3s,3s,3s" // it is emulated
		defer func() { _ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF) }()
		if err := beMachine(); err != nil {
			fmt.Println(err)
			return
		}
	}
	g, err := newGround()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(g.manifests)
	for _, c := range checks {
		began := time.Now()
		err := c.run(g)
		r := result{Check: c.name, OK: err == nil, Portal: g.portal, Seconds: time.Since(began).Seconds()}
		if err != nil {
			r.Reason = steady(err.Error())
		}
		line, err := json.Marshal(r)
		if err != nil {
			panic(err)
		}
		fmt.Printf("\n%s\n", line) // a console may have half a line of the kernel's
	}
	g.stop(unix.SIGKILL)
}

// beMachine mounts the file systems that init mounts, and assigns addresses to the machine.
func beMachine() error {
	for _, m := range [][2]string{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}} {
		if err := unix.Mount(m[0], m[1], m[0], 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m[1], err)
		}
	}
	if err := errors.Join(os.Setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"), os.MkdirAll("/etc", 0o755), os.WriteFile("/etc/resolv.conf", nil, 0o644)); err != nil {
		return err
	}
	modprobe, err := exec.LookPath("modprobe")
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile("/proc/sys/kernel/modprobe", []byte(modprobe), 0), network())
}

var changing = []struct {
	pattern *regexp.Regexp
	word    string
}{
	{regexp.MustCompile(`10\.96\.1\.\d+:8000|\[fd00:10:96::\w+\]:8000`), "VIP:8000"},
	{regexp.MustCompile(`(\d|\]):(\d{4,5})\b`), "$1:PORT"},
	{regexp.MustCompile(`pid \d+`), "pid N"},
	{regexp.MustCompile(`USHER-PROBE-\d+`), "USHER-PROBE-N"},
	{regexp.MustCompile(`/tmp/ground-\d+`), "DIR"},
	{regexp.MustCompile(`time="[^"]*" `), ""},
}

// steady removes from a reason the parts that differ between runs.
func steady(reason string) string {
	for _, c := range changing {
		reason = c.pattern.ReplaceAllString(reason, c.word)
	}
	lines := strings.Split(reason, "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(slices.Compact(lines), "\n")
}

// vip returns the address of a Service.
func vip(v6 bool, n byte) netip.Addr {
	if v6 {
		return netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x10, 0, 0x96, 15: n})
	}
	return netip.AddrFrom4([4]byte{10, 96, 1, n})
}
