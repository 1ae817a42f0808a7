package vm

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// programPath is the PATH for programs, on this machine and in a VM.
	programPath = "/usr/sbin:/usr/bin:/sbin:/bin"
	// usherPath is the path of usher in a machine.
	usherPath = "/usher"
)

const (
	// bootTimeout is for a complete run of a machine: boot, checks, halt.
	bootTimeout = 40 * time.Minute
	// trialTimeout is the time that a machine with KVM may take to boot and halt; it usually takes 2 s.
	trialTimeout = 20 * time.Second
	// afterPanic is the time that a kernel has to print the rest of its last messages.
	afterPanic = 2 * time.Second
)

// kernelOptions: the machine powers off after a panic. On a busy machine an emulated timer ticks less often than the
// kernel expects, so its timer check is disabled.
const kernelOptions = "quiet panic=-1 no_timer_check mitigations=off"

// A Platform is a CPU architecture and a Debian kernel for it.
type Platform struct {
	// Arch is the architecture, as GOARCH.
	Arch string
	// folder is the folder below .cache in which test/kernel.sh stores the kernel. For a foreign CPU architecture it
	// also holds the programs that a machine needs.
	folder string
	// kernels and modules match the kernels in folder and their module folders, as patterns of [filepath.Match]. The
	// text that matches the first * is the version.
	kernels, modules string
	// emulator is QEMU's program for the CPU with its required options; nil if the kernel itself runs as a program on
	// this machine.
	emulator []string
	// cpu is the model to emulate, one that QEMU emulates quickly.
	cpu string
	// options are additional kernel options.
	options string
	// load are the modules that other programs expect to be built into the kernel.
	load []string
}

const (
	cloudKernels = "/boot/vmlinuz-*-cloud-"
	cloudModules = "/lib/modules/*-cloud-"
)

// PC, OldPC, ARM and UML are all platforms.
var (
	// "max" has page tables of five levels, and SMAP. The kernel assumes that several TSCs are unsynchronized and would
	// use a much slower clock; those of an emulator are synchronized.
	PC    = &Platform{"amd64", "kernel", cloudKernels + "amd64", cloudModules + "amd64", []string{"qemu-system-x86_64"}, "Nehalem", "console=ttyS0 tsc=reliable", nil}
	OldPC = &Platform{"amd64", "kernel-5.10", PC.kernels, PC.modules, PC.emulator, PC.cpu, PC.options, nil}
	// "max" supports pointer authentication.
	ARM = &Platform{"arm64", "kernel-arm64", cloudKernels + "arm64", cloudModules + "arm64", []string{"qemu-system-aarch64", "-machine", "virt"}, "cortex-a72", "console=ttyAMA0", nil}
	// UML is User Mode Linux: a kernel that is a process. Its programs run on this machine's CPU, so it takes a sixth
	// of an emulator's time. Debian's UML has one CPU and no nf_tables for IP, so iptables is the legacy one there. On
	// CPUs with AMX it needs ptraceLibrary; see also Works.
	UML = &Platform{"amd64", "kernel-uml", "/usr/bin/linux.uml", "/usr/lib/uml/modules/*", nil, "", "con0=null,fd:1 con=null root=/dev/ram0", []string{"ipv6", "hmac"}}
)

// foreign reports whether the platform has a different CPU architecture than this machine.
func (p *Platform) foreign() bool { return p.Arch != runtime.GOARCH }

// ptraceLibrary, next to UML, lets it run on CPUs with AMX: see uml/ptrace.c. If it is missing, that only causes a message.
const ptraceLibrary = "ptrace.so"

// kernelVariable names, in the environment of a machine's first process, the entry of Kernels that it runs in.
const kernelVariable = "usher_kernel"

// connectionsVariable sets, on this machine and in a VM, the number of connections of a bad-network check. The default
// fits into a few minutes.
const connectionsVariable = "USHER_CONNECTIONS"

// Verdict is the result of a check.
type Verdict struct {
	Name    string
	Passed  bool
	Took    time.Duration
	Message string // why it failed
	Log     string // of a failed check
	Notes   []string
}

// upMark is the first line that a machine prints, and clockMark one that it prints clockTime later by its own clock.
const (
	upMark    = "usher's checks: the machine is up"
	clockMark = "usher's checks: some time has passed"
	clockTime = 2 * time.Second
)

// verdictMark begins a line with a verdict on the console.
const verdictMark = "VERDICT "

// Missing returns the prerequisite that this machine lacks to boot another one, or "".
func (p *Platform) Missing() string {
	if p.emulator == nil && p.foreign() {
		return "this kernel is a program for " + p.Arch
	}
	for _, program := range append([]string{"modprobe", "ip", "iptables", "ldd"}, p.emulator[:min(1, len(p.emulator))]...) {
		if findProgram("", program) == "" {
			return program + " is not installed"
		}
	}
	if kernel, _ := p.newestKernel(); kernel == "" {
		return "no " + p.kernels + " is there that this user may read, with its modules, nor below .cache/" + p.folder + " (test/kernel.sh fetches it)"
	}
	return ""
}

// fetched returns the folder in which test/kernel.sh stores the platform's kernel, relative to folder test.
func (p *Platform) fetched() string { return filepath.Join("../.cache", p.folder) }

// newestKernel returns the kernel to boot and the folder of its modules, or "".
func (p *Platform) newestKernel() (image, modules string) {
	roots := []string{p.fetched()}
	if p == PC {
		roots = append(roots, "/") // the kernel may be installed
	}
	for _, root := range roots {
		folders, _ := filepath.Glob(filepath.Join(root, p.modules)) // the pattern is valid
		for _, dir := range folders {
			before, after, _ := strings.Cut(filepath.Base(p.modules), "*")
			version := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(dir), before), after)
			candidate := filepath.Join(root, strings.Replace(p.kernels, "*", version, 1))
			usable := unix.Access(candidate, unix.R_OK) == nil && unix.Access(dir+"/modules.dep", unix.R_OK) == nil
			if usable && slices.Compare(numbers(dir), numbers(modules)) > 0 {
				image, modules = candidate, dir
			}
		}
	}
	return image, modules
}

// numbers returns the numbers in a version.
func numbers(version string) (all []int) {
	for _, n := range regexp.MustCompile(`\d+`).FindAllString(version, -1) {
		i, _ := strconv.Atoi(n) // digits
		all = append(all, i)
	}
	return all
}

// Image is the image that machines boot.
type Image struct {
	platform          *Platform
	kernel, initramfs string
	accelerator       func() string
}

// NewImage creates an image of init (the first process, such as the test binary of this package), usher and the
// programs to put next to it. All are static and built for the platform. The file is written to dir.
// [Platform.Missing] must have returned "".
func (p *Platform) NewImage(dir, init, usher string, beside ...string) (*Image, error) {
	kernel, modules := p.newestKernel()
	i := &Image{platform: p, kernel: kernel, initramfs: filepath.Join(dir, "initramfs-"+p.folder)}
	i.accelerator = sync.OnceValue(i.chooseAccelerator)
	programs := ""
	if p.foreign() {
		programs = p.fetched()
	}
	return i, writeImage(i.initramfs, init, usher, modules, programs, beside...)
}

// kvm is the accelerator that needs /dev/kvm.
const kvm = "kvm"

// chooseAccelerator tries whether KVM works. On some machines /dev/kvm exists, but a machine booted with it hangs.
func (i *Image) chooseAccelerator() string {
	if i.platform.emulator != nil && !i.platform.foreign() && unix.Access("/dev/kvm", unix.R_OK|unix.W_OK) == nil {
		if console, _ := i.run(kvm, "", trialTimeout); strings.Contains(console, upMark) {
			return kvm
		}
	}
	return "tcg,thread=multi"
}

// Works reports whether this machine can run the kernel of the image. It may only be false for UML. A busy machine boots
// it in several seconds.
func (i *Image) Works() bool {
	if i.platform.emulator != nil {
		return true
	}
	console, _ := i.run("", "", 3*trialTimeout)
	return strings.Contains(console, upMark)
}

// Boot boots a kernel in a machine that has only the image and a console. It returns the verdicts by check name, and
// the console output.
func (i *Image) Boot(kernel string) (map[string]Verdict, string) {
	for attempt := 1; ; attempt++ {
		console, err := i.run(i.accelerator(), kernel, bootTimeout)
		if !errors.Is(err, errFastClock) || attempt == maxBoots {
			return verdicts(console), console
		}
	}
}

// errFastClock: on a busy machine, a kernel may measure the speed of its TSC wrongly. In one boot its clock was ten times
// too fast, so that its checks timed out.
var errFastClock = errors.New("the kernel's clock is too fast")

const maxBoots = 3

// run boots a kernel and returns the console output after the machine has powered off, and why it did so early.
func (i *Image) run(accelerator, kernel string, timeout time.Duration) (string, error) {
	timed, end := context.WithTimeout(context.Background(), timeout)
	defer end()
	ctx, cancel := context.WithCancelCause(timed)
	defer cancel(nil)
	command := i.command(accelerator, kernelOptions+" "+i.platform.options+" "+kernelVariable+"="+strings.ReplaceAll(kernel, " ", "_")+" "+connectionsVariable+"="+os.Getenv(connectionsVariable))
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	console := console{cancel: cancel}
	cmd.Stdout, cmd.Stderr = &console, &console
	// The machine does not outlive the tests, however they end. See PR_SET_PDEATHSIG in prctl(2); the signal is tied to
	// the thread that started the process.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if i.platform.emulator == nil {
		cmd.Env = append(os.Environ(), "TMPDIR="+i.memoryFolder(), "LD_PRELOAD="+filepath.Join(i.platform.fetched(), ptraceLibrary))
		// Its processes are processes of this machine; they end with the first process of their PID namespace.
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWPID
		if os.Geteuid() != 0 {
			cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Run(); err != nil {
		fmt.Fprintf(&console, "\n%s: %v\n", command[0], cmp.Or(context.Cause(ctx), err))
	}
	return console.text.String(), context.Cause(ctx)
}

// console collects the output of a kernel. It calls cancel if the kernel panics, because UML may then never end, and if
// its clock is too fast.
type console struct {
	text     bytes.Buffer
	cancel   context.CancelCauseFunc
	panicked bool
	up       time.Time // arrival of upMark
	checked  bool      // clockMark has arrived
}

// Write implements io.Writer.
func (c *console) Write(b []byte) (int, error) {
	n, err := c.text.Write(b)
	has := func(mark string) bool { return bytes.Contains(c.text.Bytes(), []byte(mark)) }
	if !c.panicked && has("Kernel panic") {
		c.panicked = true
		time.AfterFunc(afterPanic, func() { c.cancel(nil) })
	}
	if c.up.IsZero() && has(upMark) {
		c.up = time.Now()
	}
	if !c.checked && has(clockMark) {
		c.checked = true
		if time.Since(c.up) < clockTime/2 {
			c.cancel(errFastClock)
		}
	}
	return n, err
}

// command returns the program that boots the kernel with options, and its arguments.
func (i *Image) command(accelerator, options string) []string {
	if i.platform.emulator == nil {
		return append([]string{i.kernel, "mem=" + memory, "initrd=" + i.initramfs, "uml_dir=" + filepath.Dir(i.initramfs)}, strings.Fields(options)...)
	}
	cpu := i.platform.cpu
	if accelerator == kvm {
		cpu = "max" // the host CPU's features
	}
	return append(slices.Clone(i.platform.emulator), "-cpu", cpu, "-accel", accelerator, "-smp", "1", "-m", memory,
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio",
		"-kernel", i.kernel, "-initrd", i.initramfs, "-append", options)
}

// memory is the size of a machine's memory, 1 GiB.
const memory = "1G"

// memoryFolder returns the folder for UML's memory file, from which programs are executed. It is in memory if that has
// enough space and allows execution; the /dev/shm of a container may not.
func (i *Image) memoryFolder() string {
	const shm = "/dev/shm"
	var s unix.Statfs_t
	if err := unix.Statfs(shm, &s); err == nil && s.Flags&unix.ST_NOEXEC == 0 && s.Bavail*uint64(s.Bsize) > 1<<30 {
		return shm
	}
	return filepath.Dir(i.initramfs)
}

// verdicts extracts the verdicts from console output. A check whose verdict line is malformed gets no verdict.
func verdicts(console string) map[string]Verdict {
	found := map[string]Verdict{}
	lines := bufio.NewScanner(strings.NewReader(console))
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		_, text, ok := strings.Cut(lines.Text(), verdictMark)
		var v Verdict
		if ok && json.Unmarshal([]byte(text), &v) == nil {
			found[v.Name] = v
		}
	}
	return found
}
