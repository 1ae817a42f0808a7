package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gexec"

	"github.com/usherproxy/usher/test/lab"
	"github.com/usherproxy/usher/test/vm"
)

// What this machine's kernel may not have is checked in others: see package vm.
// Each check there is a test here.
var _ = Describe("in", func() {
	for _, kernel := range vm.Kernels {
		Describe(kernel.Name, func() {
			for _, check := range kernel.Checks {
				It(check.Name, func() {
					lab.Long()
					if lack := vm.Missing(); lack != "" {
						Skip(lack)
					}
					verdicts, console := bootAll()[kernel.Name]()
					verdict, ok := verdicts[check.Name]
					if !ok {
						Fail("the kernel ended without a verdict; its console:\n" + tail(console))
					}
					GinkgoWriter.Printf("took %s in the kernel\n", verdict.Took)
					for _, note := range verdict.Notes {
						AddReportEntry(check.Name, note)
					}
					Expect(verdict.Passed).To(BeTrue(), "%s\n\n%s", verdict.Message, verdict.Log)
				})
			}
		})
	}
})

// bootAll boots all kernels at once, and returns functions that wait for the
// verdicts and the console of each.
var bootAll = sync.OnceValue(func() map[string]func() (map[string]vm.Verdict, string) {
	GinkgoHelper()
	image := buildImage()
	boots := map[string]func() (map[string]vm.Verdict, string){}
	for _, kernel := range vm.Kernels {
		boot := sync.OnceValues(func() (map[string]vm.Verdict, string) { return image.Boot(kernel.Name) })
		boots[kernel.Name] = boot
		go boot()
	}
	return boots
})

// buildImage builds what runs in a kernel. It is static, and without the race
// detector, which would take most of an emulated processor's time.
func buildImage() *vm.Image {
	GinkgoHelper()
	static, stripped := []string{"CGO_ENABLED=0"}, "-ldflags=-s -w"
	usher, err := gexec.BuildWithEnvironment("github.com/usherproxy/usher/cmd/usher", static, stripped)
	Expect(err).NotTo(HaveOccurred())
	dir := filepath.Dir(usher) // gexec cleans up there
	inside := filepath.Join(dir, "vm.test")
	compile := exec.Command("go", "test", "-c", stripped, "-o", inside, "github.com/usherproxy/usher/test/vm")
	compile.Env = append(os.Environ(), static...)
	out, err := compile.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
	image, err := vm.NewImage(dir, inside, usher)
	Expect(err).NotTo(HaveOccurred())
	return image
}

// tail returns the end of a console.
func tail(console string) string {
	lines := strings.Split(console, "\n")
	return strings.Join(lines[max(0, len(lines)-80):], "\n")
}
