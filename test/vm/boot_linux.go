package vm

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
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
	// programPath is where programs are, here and in a machine.
	programPath = "/usr/sbin:/usr/bin:/sbin:/bin"
	// usherPath is where usher is in a machine.
	usherPath = "/usher"
)

const (
	// bootTimeout is for a whole machine: boot, checks, halt.
	bootTimeout = 40 * time.Minute
	// trialTimeout is for a machine with KVM to boot and halt, which takes it 2 s.
	trialTimeout = 20 * time.Second
)

// kernelOptions: after a panic the machine is off. On a busy machine an emulated
// timer does not tick as often as the kernel expects when it checks that.
const kernelOptions = "quiet panic=-1 no_timer_check mitigations=off"

// A Platform is a processor and a kernel of Debian's for it.
type Platform struct {
	// Arch is the processor, as Go calls it.
	Arch string
	// folder is where test/kernel.sh leaves the kernel, below .cache; for another processor
	// than this machine's with the programs that a machine needs.
	folder string
	// kernels are the kernels there, and modules their folders of modules, as patterns of
	// [filepath.Match]. What stands for the first * names the version.
	kernels, modules string
	// emulator is QEMU's program for the CPU, with the options that it needs; nil if the
	// kernel is a program of this machine's itself.
	emulator []string
	// cpu is the model to emulate: one that is emulated quickly.
	cpu string
	// options are further ones of the kernel.
	options string
	// load are modules that others expect to be part of the kernel.
	load []string
}

const (
	cloudKernels = "/boot/vmlinuz-*-cloud-"
	cloudModules = "/lib/modules/*-cloud-"
)

// PC, OldPC, ARM and UML are all platforms.
var (
	// "max" has page tables of five levels, and SMAP. The kernel takes several TSCs for
	// unsynchronized, which those of an emulator are not, and would use a much slower clock.
	PC    = &Platform{"amd64", "kernel", cloudKernels + "amd64", cloudModules + "amd64", []string{"qemu-system-x86_64"}, "Nehalem", "console=ttyS0 tsc=reliable", nil}
	OldPC = &Platform{"amd64", "kernel-5.10", PC.kernels, PC.modules, PC.emulator, PC.cpu, PC.options, nil}
	// "max" signs pointers.
	ARM = &Platform{"arm64", "kernel-arm64", cloudKernels + "arm64", cloudModules + "arm64", []string{"qemu-system-aarch64", "-machine", "virt"}, "cortex-a72", "console=ttyAMA0", nil}
	// UML is User Mode Linux: a kernel that is a process, whose programs run on this machine's
	// processor, so that it takes a sixth of an emulator's time. Debian's has one
	// CPU, and of nf_tables nothing for IP: iptables is the legacy one there.
	UML = &Platform{"amd64", "kernel-uml", "/usr/bin/linux.uml", "/usr/lib/uml/modules/*", nil, "", "con0=null,fd:1 con=null root=/dev/ram0", []string{"ipv6", "hmac"}}
)

// foreign reports whether it is another processor than this machine's.
func (p *Platform) foreign() bool { return p.Arch != runtime.GOARCH }

// kernelVariable tells a machine's first process, through its environment, which
// of the Kernels it is in.
const kernelVariable = "usher_kernel"

// connectionsVariable says, here and in a machine, how many connections a check of a bad
// network makes, if it is not what fits into a few minutes.
const connectionsVariable = "USHER_CONNECTIONS"

// Verdict is what became of a check.
type Verdict struct {
	Name    string
	Passed  bool
	Took    time.Duration
	Message string // why it failed
	Log     string // of a check that failed
	Notes   []string
}

// upMark is what a machine says first.
const upMark = "usher's checks: the machine is up"

// verdictMark begins a line with a verdict on the console.
const verdictMark = "VERDICT "

// Missing says what this machine lacks to boot another one, or "".
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

// fetched is where test/kernel.sh leaves the platform's kernel, seen from folder test.
func (p *Platform) fetched() string { return filepath.Join("../.cache", p.folder) }

// newestKernel returns the kernel to boot and the folder of its modules, or "".
func (p *Platform) newestKernel() (image, modules string) {
	roots := []string{p.fetched()}
	if p == PC {
		roots = append(roots, "/") // it may be installed
	}
	for _, root := range roots {
		folders, _ := filepath.Glob(filepath.Join(root, p.modules)) // the pattern is a good one
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

// numbers returns those in a version.
func numbers(version string) (all []int) {
	for _, n := range regexp.MustCompile(`\d+`).FindAllString(version, -1) {
		i, _ := strconv.Atoi(n) // digits
		all = append(all, i)
	}
	return all
}

// Image is what machines boot.
type Image struct {
	platform          *Platform
	kernel, initramfs string
	accelerator       func() string
}

// NewImage makes an image of init, the test binary of this package, and usher with what is to be beside it,
// all static and for the platform. Its file goes to dir. What [Platform.Missing] asks for
// must be there.
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

// chooseAccelerator tries whether the processor's help is to be had. On some
// machines /dev/kvm is there, and what is booted with it stands still.
func (i *Image) chooseAccelerator() string {
	if i.platform.emulator != nil && !i.platform.foreign() && unix.Access("/dev/kvm", unix.R_OK|unix.W_OK) == nil {
		if console := i.run(kvm, "", trialTimeout); strings.Contains(console, upMark) {
			return kvm
		}
	}
	return "tcg,thread=multi"
}

// Boot boots a kernel in a machine that has nothing but the image and a console,
// and returns the verdicts by the checks' names, and the console.
func (i *Image) Boot(kernel string) (map[string]Verdict, string) {
	console := i.run(i.accelerator(), kernel, bootTimeout)
	return verdicts(console), console
}

// run boots a kernel and returns the console when the machine is off.
func (i *Image) run(accelerator, kernel string, timeout time.Duration) string {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	command := i.command(accelerator, kernelOptions+" "+i.platform.options+" "+kernelVariable+"="+strings.ReplaceAll(kernel, " ", "_")+" "+connectionsVariable+"="+os.Getenv(connectionsVariable))
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	var console bytes.Buffer
	cmd.Stdout, cmd.Stderr = &console, &console
	// However the tests end, the machine does not outlive them: see PR_SET_PDEATHSIG in
	// prctl(2), which counts the thread that started it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if i.platform.emulator == nil {
		cmd.Env = append(os.Environ(), "TMPDIR="+i.memoryFolder())
		// Its processes are ones of this machine, and end with the first one of their namespace.
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
	return console.String()
}

// command returns the program that boots the kernel with options, and its arguments.
func (i *Image) command(accelerator, options string) []string {
	if i.platform.emulator == nil {
		return append([]string{i.kernel, "mem=" + memory, "initrd=" + i.initramfs, "uml_dir=" + filepath.Dir(i.initramfs)}, strings.Fields(options)...)
	}
	cpu := i.platform.cpu
	if accelerator == kvm {
		cpu = "max" // the machine's own
	}
	return append(slices.Clone(i.platform.emulator), "-cpu", cpu, "-accel", accelerator, "-smp", "2", "-m", memory,
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio",
		"-kernel", i.kernel, "-initrd", i.initramfs, "-append", options)
}

// memory is a machine's, 1 GiB.
const memory = "1G"

// memoryFolder returns where UML has the file that is its memory, which programs run in: in
// memory where that has room and may hold programs, which the /dev/shm of a container may not.
func (i *Image) memoryFolder() string {
	const shm = "/dev/shm"
	var s unix.Statfs_t
	if err := unix.Statfs(shm, &s); err == nil && s.Flags&unix.ST_NOEXEC == 0 && s.Bavail*uint64(s.Bsize) > 1<<30 {
		return shm
	}
	return filepath.Dir(i.initramfs)
}

// verdicts finds the verdicts on a console. A line that is not one after all
// leaves its check without a verdict.
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
