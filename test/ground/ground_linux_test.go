package ground

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/usherproxy/usher/test/lab"
)

// A ground is an environment in which usher may run.
type ground struct {
	name string
	// needs are this machine's programs that create the ground.
	needs []string
	// command returns the command that runs the checks there. dir contains the programs, and is writable.
	command func(dir string) []string
}

// dual, only4 and only6 are scripts that set up a new network namespace with an interface, and run a command there.
var (
	dual  = network("10.244.0.2/24", "fd00:244::2/64")
	only4 = "echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6 && echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6 && " + network("10.244.0.2/24")
	only6 = network("fd00:244::2/64")
)

func network(addresses ...string) string {
	script := "ip link set lo up && ip link add eth0 type veth peer name peer && ip link set eth0 up && ip link set peer up"
	for _, a := range addresses {
		script += " && ip addr add " + a + " dev eth0"
		if strings.Contains(a, ":") {
			script += " nodad"
		}
	}
	return script + ` && exec "$@"`
}

// in returns a command that runs another one in a new network namespace set up by a script.
func in(script string, command ...string) []string {
	return append([]string{"unshare", "--net", "--", "sh", "-c", script, "sh"}, command...)
}

// checksIn returns the command that runs the checks with the programs in dir.
func checksIn(dir string) []string {
	return []string{filepath.Join(dir, "checks"), "-usher", filepath.Join(dir, "usher"), "-dir", filepath.Join(dir, "tmp")}
}

// ordinaryUser runs a command as a non-root user.
var ordinaryUser = []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"}

// grounds are all grounds except machines with other kernels.
var grounds = []ground{
	{"root on a node", nil, func(dir string) []string { return in(dual, checksIn(dir)...) }},
	{"a user who is not root", []string{"setpriv"}, func(dir string) []string { return in(dual, append(ordinaryUser, checksIn(dir)...)...) }},
	{"an unprivileged user namespace", []string{"setpriv"}, func(dir string) []string {
		return append(ordinaryUser[:4:4], append([]string{"unshare", "--user", "--map-root-user", "--net", "sh", "-c", dual, "sh"}, checksIn(dir)...)...)
	}},
	{"gVisor", nil, func(dir string) []string {
		return in(dual, append([]string{runsc, "--ignore-cgroups", "--network=none", "--platform=systrap", "do"}, checksIn(dir)...)...)
	}},
	{"a container, Docker's default", []string{"runc"}, func(dir string) []string { return container(dir, false) }},
	{"a container with NET_ADMIN", []string{"runc"}, func(dir string) []string { return container(dir, false, "CAP_NET_ADMIN") }},
	{"a container with NET_ADMIN and a read-only root", []string{"runc"}, func(dir string) []string { return container(dir, true, "CAP_NET_ADMIN") }},
	{"a chroot without /proc", nil, func(dir string) []string {
		return in(dual, append([]string{"chroot", dir}, checksIn("/")...)...)
	}},
	{"a node without IPv6", nil, func(dir string) []string { return in(only4, checksIn(dir)...) }},
	{"a node with IPv6 only", nil, func(dir string) []string { return in(only6, checksIn(dir)...) }},
	{"one core", []string{"taskset"}, func(dir string) []string {
		return in(dual, append([]string{"taskset", "-c", "0"}, checksIn(dir)...)...)
	}},
	{"half a core", nil, func(dir string) []string {
		group := halfCore()
		return in(fmt.Sprintf("echo $$ >%s/cgroup.procs && %s", group, dual), checksIn(dir)...)
	}},
	{"64 MiB of memory", nil, func(dir string) []string {
		memory, err := lab.NewMemory()
		Expect(err).NotTo(HaveOccurred())
		memory.Limit(64 << 20)
		args := checksIn(dir)
		args[2] = memory.Wrap(args[2])
		Expect(os.Symlink(filepath.Join(dir, "kubectl-usher"), filepath.Join(filepath.Dir(args[2]), "kubectl-usher"))).To(Succeed())
		return in(dual, args...)
	}},
}

// halfCore returns the folder of a new cgroup that limits its processes to half a core.
func halfCore() string {
	GinkgoHelper()
	parent, file, limit := "/sys/fs/cgroup", "cpu.max", "50000 100000"
	if _, err := os.Stat("/sys/fs/cgroup/cpu"); err == nil { // cgroups(7), version 1
		parent, file, limit = "/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "50000"
	}
	dir, err := os.MkdirTemp(parent, "usher-")
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Eventually(func() error { return os.Remove(dir) }).WithTimeout(patience).Should(Succeed()) })
	Expect(os.WriteFile(filepath.Join(dir, file), []byte(limit), 0)).To(Succeed())
	return dir
}

// dockerCapabilities are the default capabilities of a container with Docker and containerd.
var dockerCapabilities = []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID",
	"CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE"}

// container returns a command that creates a container like Docker and containerd: with their default seccomp profile,
// read-only /proc/sys, and the given additional capabilities. It has this machine's programs.
func container(dir string, readonly bool, capabilities ...string) []string {
	GinkgoHelper()
	root := filepath.Join(dir, "root")
	Expect(os.Mkdir(root, 0o755)).To(Succeed())
	has := append(dockerCapabilities[:len(dockerCapabilities):len(dockerCapabilities)], capabilities...)
	spec := &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: root, Readonly: readonly},
		Process: &specs.Process{
			Args: checksIn("/programs"), Cwd: "/", Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, NoNewPrivileges: true,
			Capabilities: &specs.LinuxCapabilities{Bounding: has, Effective: has, Permitted: has},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
			{Destination: "/programs", Type: "bind", Source: dir, Options: []string{"bind", "ro"}},
			{Destination: "/programs/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=1777"}},
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace}},
			MaskedPaths: []string{"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug",
				"/sys/firmware", "/proc/scsi"},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
	for _, name := range []string{"/usr", "/etc"} {
		spec.Mounts = append(spec.Mounts, specs.Mount{Destination: name, Type: "bind", Source: name, Options: []string{"rbind", "ro"}})
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		Expect(os.Symlink("usr/"+name, filepath.Join(root, name))).To(Succeed())
	}
	for _, name := range []string{"proc", "dev", "sys", "programs", "usr", "etc", "run", "tmp"} {
		Expect(os.Mkdir(filepath.Join(root, name), 0o755)).To(Succeed())
	}
	spec.Linux.Seccomp = seccomp.DefaultProfile(spec)
	config, err := json.Marshal(spec)
	Expect(err).NotTo(HaveOccurred())
	Expect(os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644)).To(Succeed())
	return in(dual, "runc", "--root", filepath.Join(dir, "runc"), "run", "--bundle", dir, filepath.Base(dir))
}

// lack returns the prerequisite of the ground that this machine lacks, or "".
func (g ground) lack() string {
	if os.Geteuid() != 0 {
		return "needs root"
	}
	for _, program := range append([]string{"unshare", "ip"}, g.needs...) {
		if _, err := exec.LookPath(program); err != nil {
			return program + " is not installed"
		}
	}
	return ""
}
