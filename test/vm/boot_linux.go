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
	bootTimeout = 20 * time.Minute
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
	// emulator is QEMU's program for the CPU, with the options that it needs.
	emulator []string
	// cpu is the model to emulate: one that is emulated quickly.
	cpu string
	// console is what the kernel calls it.
	console string
	// options are further ones of the kernel.
	options string
}

// PC, OldPC and ARM are all platforms.
var (
	// "max" has page tables of five levels, and SMAP. The kernel takes several TSCs for
	// unsynchronized, which those of an emulator are not, and would use a much slower clock.
	PC    = &Platform{"amd64", "kernel", []string{"qemu-system-x86_64"}, "Nehalem", "ttyS0", "tsc=reliable"}
	OldPC = &Platform{"amd64", "kernel-5.10", PC.emulator, PC.cpu, PC.console, PC.options}
	// "max" signs pointers.
	ARM = &Platform{"arm64", "kernel-arm64", []string{"qemu-system-aarch64", "-machine", "virt"}, "cortex-a72", "ttyAMA0", ""}
)

// foreign reports whether it is another processor than this machine's.
func (p *Platform) foreign() bool { return p.Arch != runtime.GOARCH }

// kernels are Debian's for virtual machines: the small ones.
func (p *Platform) kernels() string { return "/boot/vmlinuz-*-cloud-" + p.Arch }

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
	for _, program := range []string{p.emulator[0], "modprobe", "ip", "iptables", "ldd"} {
		if findProgram("", program) == "" {
			return program + " is not installed"
		}
	}
	if kernel, _ := p.newestKernel(); kernel == "" {
		return "no " + p.kernels() + " is there that this user may read, with its modules, nor below .cache/" + p.folder + " (test/kernel.sh fetches it)"
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
		images, _ := filepath.Glob(filepath.Join(root, p.kernels())) // the pattern is a good one
		for _, candidate := range images {
			dir := filepath.Join(root, "lib/modules", strings.TrimPrefix(filepath.Base(candidate), "vmlinuz-"))
			usable := unix.Access(candidate, unix.R_OK) == nil && unix.Access(dir+"/modules.dep", unix.R_OK) == nil
			if usable && slices.Compare(numbers(filepath.Base(candidate)), numbers(filepath.Base(image))) > 0 {
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

// NewImage makes an image of init, the test binary of this package, and usher,
// both static and for the platform. Its file goes to dir. What [Platform.Missing] asks for
// must be there.
func (p *Platform) NewImage(dir, init, usher string) (*Image, error) {
	kernel, modules := p.newestKernel()
	i := &Image{platform: p, kernel: kernel, initramfs: filepath.Join(dir, "initramfs-"+p.folder)}
	i.accelerator = sync.OnceValue(i.chooseAccelerator)
	programs := ""
	if p.foreign() {
		programs = p.fetched()
	}
	return i, writeImage(i.initramfs, init, usher, modules, programs)
}

// kvm is the accelerator that needs /dev/kvm.
const kvm = "kvm"

// chooseAccelerator tries whether the processor's help is to be had. On some
// machines /dev/kvm is there, and what is booted with it stands still.
func (i *Image) chooseAccelerator() string {
	if !i.platform.foreign() && unix.Access("/dev/kvm", unix.R_OK|unix.W_OK) == nil {
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
	emulator := i.platform.emulator[0]
	cpu := i.platform.cpu
	if accelerator == kvm {
		cpu = "max" // the machine's own
	}
	cmd := exec.CommandContext(ctx, emulator, append(slices.Clone(i.platform.emulator[1:]), "-cpu", cpu, "-accel", accelerator, "-smp", "2", "-m", "1G",
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio",
		"-kernel", i.kernel, "-initrd", i.initramfs,
		"-append", "console="+i.platform.console+" "+kernelOptions+" "+i.platform.options+" "+kernelVariable+"="+strings.ReplaceAll(kernel, " ", "_")+" "+connectionsVariable+"="+os.Getenv(connectionsVariable))...)
	var console bytes.Buffer
	cmd.Stdout, cmd.Stderr = &console, &console
	// However the tests end, the machine does not outlive them: see PR_SET_PDEATHSIG in
	// prctl(2), which counts the thread that started it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Run(); err != nil {
		fmt.Fprintf(&console, "\n%s: %v\n", emulator, cmp.Or(context.Cause(ctx), err))
	}
	return console.String()
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
