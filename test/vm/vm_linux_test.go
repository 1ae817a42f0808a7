package vm

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

// TestMain is the first process of a kernel, or an ordinary test.
func TestMain(m *testing.M) {
	if os.Getpid() != 1 {
		os.Exit(m.Run())
	}
	if err := prepare(); err != nil {
		fmt.Println("the kernel could not be made ready:", err)
	} else {
		m.Run()
	}
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// TestInside runs the checks of the kernel that this is.
func TestInside(t *testing.T) {
	if os.Getpid() != 1 {
		t.Skip("this runs inside the kernels that folder test boots")
	}
	RegisterFailHandler(Fail)
	RunSpecs(t, "inside")
}

// thisKernel is the one that this process is in; nil if it is an ordinary test.
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

// prepare makes the kernel fit for the checks: file systems, a network, modules.
func prepare() error {
	if thisKernel == nil {
		return fmt.Errorf("there is no kernel called %q", os.Getenv(kernelVariable))
	}
	for _, v := range [][2]string{{"PATH", "/usr/sbin:/usr/bin:/sbin:/bin"}, {"TMPDIR", "/run/tmp"}, {"HOME", "/run/tmp"}} {
		if err := os.Setenv(v[0], v[1]); err != nil {
			return err
		}
	}
	for _, m := range [][2]string{{"proc", "/proc"}, {"sysfs", "/sys"}, {"tmpfs", "/run"}} {
		if err := unix.Mount(m[0], m[1], m[0], 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mounting %s: %w", m[1], err)
		}
	}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return err
	}
	release := unix.ByteSliceToString(uts.Release[:])
	for _, dir := range []string{"/run/tmp", moduleRoot + "/lib/modules"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := os.Symlink("/usr/lib/uml/modules/"+release, moduleRoot+"/lib/modules/"+release); err != nil {
		return err
	}
	for _, module := range thisKernel.Modules {
		if err := loadModule(module); err != nil {
			return err
		}
	}
	return setModuleLoader(thisKernel.Bare)
}

// setModuleLoader says what the kernel calls when it wants a module. Programs
// such as iptables read it too.
func setModuleLoader(none bool) error {
	loader := ""
	if !none {
		loader = "/run/modprobe"
		script := "#!/bin/sh\nexec /sbin/modprobe -d " + moduleRoot + " \"$@\"\n"
		if err := os.WriteFile(loader, []byte(script), 0o755); err != nil {
			return err
		}
	}
	return os.WriteFile("/proc/sys/kernel/modprobe", []byte(loader+"\n"), 0)
}
