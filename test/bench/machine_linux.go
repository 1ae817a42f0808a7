package main

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/test/bench/report"
)

// thisMachine describes the machine and the programs that are measured.
func thisMachine(usher, note string, o options) (report.Machine, error) {
	var kernel unix.Utsname
	if err := unix.Uname(&kernel); err != nil {
		return report.Machine{}, err
	}
	memory, err := kilobytes("/proc/meminfo", "MemTotal:")
	if err != nil {
		return report.Machine{}, err
	}
	system := unix.ByteSliceToString(kernel.Sysname[:]) + " " + unix.ByteSliceToString(kernel.Release[:])
	if name := after("/etc/os-release", "PRETTY_NAME="); name != "" {
		system += ", " + strings.Trim(name, `"`)
	}
	haproxies := firstLine("haproxy", "-v")
	if o.secondHAProxy != "" {
		haproxies += "; other version: " + firstLine(o.secondHAProxy, "-v")
	}
	return report.Machine{
		Date:       time.Now().UTC().Format(time.DateOnly),
		System:     system,
		CPU:        strings.TrimLeft(after("/proc/cpuinfo", "model name"), "\t: "),
		Cores:      runtime.NumCPU(),
		Memory:     memory << 10,
		Congestion: o.congestion,
		Note:       note,
		Seconds:    o.each.Seconds(),
		Programs: []string{
			firstLine(usher, "version"),
			haproxies,
			firstLine("nginx", "-v"),
			firstLine("iptables", "--version"),
			firstLine("nft", "--version"),
			"clients and endpoint: " + runtime.Version(),
		},
	}, nil
}

// firstLine returns the first line that a program prints, or the error: a missing program is reported when its
// measurement starts.
func firstLine(program string, args ...string) string {
	out, err := exec.Command(program, args...).CombinedOutput()
	if line, _, _ := strings.Cut(string(out), "\n"); line != "" {
		return line
	}
	return program + ": " + err.Error()
}

// after returns the rest of the first line of a file that begins with prefix, or "".
func after(file, prefix string) string {
	data, _ := os.ReadFile(file)
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, prefix); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}
