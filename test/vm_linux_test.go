package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gexec"

	"github.com/usherproxy/usher/test/lab"
	"github.com/usherproxy/usher/test/vm"
)

// Package vm checks kernel features in other kernels, since this machine's kernel may lack them. Each check there is a
// test here. Ordered keeps the tests in one process, which boots each kernel once. They run first, since they take
// longest.
var _ = Describe("in", Ordered, ContinueOnFailure, SpecPriority(1), func() {
	for _, kernel := range vm.Kernels {
		Describe(kernel.Name, func() {
			for _, check := range kernel.Checks {
				It(check.Name, func() {
					lab.Long()
					boots := bootAll()
					if lack := kernel.On.Missing(); lack != "" {
						Skip(lack)
					}
					verdicts, console := boots[kernel.Name]()
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

// atOnce is the number of kernels that run concurrently. With more, emulated CPUs leave too little of this machine's
// CPUs to each kernel and to other specs.
const atOnce = 2

// bootAll boots all requested kernels and returns, for each, a function that waits for its verdicts and console.
var bootAll = sync.OnceValue(func() map[string]func() (map[string]vm.Verdict, string) {
	GinkgoHelper()
	out, err := exec.Command("./kernel.sh").CombinedOutput() // fetches nothing that is there; waits for another one that is fetching
	Expect(err).NotTo(HaveOccurred(), string(out))
	fmt.Fprintf(GinkgoWriter, "%s", out)
	boots := map[string]func() (map[string]vm.Verdict, string){}
	images := map[*vm.Platform]*vm.Image{}
	turn := make(chan struct{}, atOnce)
	for _, kernel := range vm.Kernels {
		if !asked(kernel) || kernel.On.Missing() != "" {
			continue
		}
		image := images[kernel.On]
		if image == nil {
			image = buildImage(kernel.On)
			if !image.Works() && vm.PC.Missing() == "" {
				if images[vm.PC] == nil {
					images[vm.PC] = buildImage(vm.PC)
				}
				image = images[vm.PC]
			}
			images[kernel.On] = image
		}
		boot := sync.OnceValues(func() (map[string]vm.Verdict, string) {
			turn <- struct{}{}
			defer func() { <-turn }()
			return image.Boot(kernel.Name)
		})
		boots[kernel.Name] = boot
		go boot()
	}
	return boots
})

// asked reports whether a check of the kernel is among the selected specs.
func asked(kernel vm.Kernel) bool {
	config, _ := GinkgoConfiguration()
	return len(config.FocusStrings) == 0 || slices.ContainsFunc(kernel.Checks, func(check vm.Check) bool {
		return slices.ContainsFunc(config.FocusStrings, func(focus string) bool {
			return regexp.MustCompile(focus).MatchString("usher in " + kernel.Name + " " + check.Name)
		})
	})
}

// buildImage builds the image that runs in a kernel. It is static and without the race detector, which would take most
// of an emulated CPU's time.
func buildImage(p *vm.Platform) *vm.Image {
	GinkgoHelper()
	static, stripped := []string{"CGO_ENABLED=0", "GOARCH=" + p.Arch}, "-ldflags=-s -w"
	usher, err := gexec.BuildWithEnvironment("github.com/usherproxy/usher/cmd/usher", static, stripped)
	Expect(err).NotTo(HaveOccurred())
	dir := filepath.Dir(usher) // gexec removes it
	inside := filepath.Join(dir, "vm.test")
	compile := exec.Command("go", "test", "-c", "-vet=off", stripped, "-o", inside, "github.com/usherproxy/usher/test/vm")
	compile.Env = append(os.Environ(), static...)
	out, err := compile.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
	image, err := p.NewImage(dir, inside, usher)
	Expect(err).NotTo(HaveOccurred())
	return image
}

// tail returns the end of a console.
func tail(console string) string {
	lines := strings.Split(console, "\n")
	return strings.Join(lines[max(0, len(lines)-80):], "\n")
}
