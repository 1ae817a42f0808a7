package vm

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/test/lab"
)

// TestMain is the first process of a kernel, or an ordinary test.
func TestMain(m *testing.M) {
	if os.Getpid() != 1 {
		os.Exit(m.Run())
	}
	fmt.Println(upMark)
	time.AfterFunc(clockTime, func() { fmt.Println(clockMark) })
	if thisKernel == nil {
		fmt.Printf("there is no kernel called %q\n", os.Getenv(kernelVariable))
	} else if err := prepare(); err != nil {
		fmt.Println("the kernel could not be made ready:", err)
	} else {
		m.Run()
	}
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// TestInside runs the checks of the kernel that it runs in.
func TestInside(t *testing.T) {
	if os.Getpid() != 1 {
		t.Skip("this runs inside the kernels that folder test boots")
	}
	RegisterFailHandler(Fail)
	lab.Ask()
	RunSpecs(t, "inside")
}

// thisKernel is the kernel that this process runs in; nil in an ordinary test.
var thisKernel = func() *Kernel {
	for i, k := range Kernels {
		if strings.ReplaceAll(k.Name, " ", "_") == os.Getenv(kernelVariable) && os.Getpid() == 1 {
			return &Kernels[i]
		}
	}
	return nil
}()

var _ = Describe("check", Ordered, ContinueOnFailure, func() {
	if thisKernel == nil {
		return
	}
	for _, c := range thisKernel.Checks {
		It(c.Name, c.Body)
	}
})

// Each check's verdict is one line.
var _ = ReportAfterEach(func(r SpecReport) {
	v := Verdict{Name: r.LeafNodeText, Passed: r.State.Is(types.SpecStatePassed), Took: r.RunTime}
	if !v.Passed {
		v.Message = r.FailureMessage() + "\n" + r.FailureLocation().String()
		v.Log = r.CapturedGinkgoWriterOutput
	}
	for _, entry := range r.ReportEntries {
		v.Notes = append(v.Notes, entry.StringRepresentation())
	}
	line, err := json.Marshal(v)
	Expect(err).NotTo(HaveOccurred())
	fmt.Printf("\n%s%s\n", verdictMark, line)
})

// prepare prepares the kernel for the checks: file systems, modules.
func prepare() error {
	for _, v := range [][2]string{{"PATH", programPath}, {"TMPDIR", "/tmp"}, {"HOME", "/tmp"}} {
		if err := os.Setenv(v[0], v[1]); err != nil {
			return err
		}
	}
	for _, m := range [][2]string{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}} {
		if err := unix.Mount(m[0], m[1], m[0], 0, ""); err != nil {
			return fmt.Errorf("mounting %s: %w", m[1], err)
		}
	}
	for _, module := range slices.Concat(thisKernel.On.load, thisKernel.Modules) {
		if out, err := exec.Command("modprobe", module).CombinedOutput(); err != nil {
			return fmt.Errorf("modprobe %s: %w: %s", module, err, out)
		}
	}
	loader := findProgram("", "modprobe") // what the kernel calls to load a module
	if thisKernel.Bare {
		loader = ""
	}
	return os.WriteFile("/proc/sys/kernel/modprobe", []byte(loader+"\n"), 0)
}
