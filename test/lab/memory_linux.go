package lab

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
)

// Resident returns the resident memory of a process, in bytes.
func Resident(pid int) int64 {
	ginkgo.GinkgoHelper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kB, err := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
			gomega.Expect(err).NotTo(gomega.HaveOccurred())
			return kB << 10
		}
	}
	ginkgo.Fail("no VmRSS in " + string(status))
	return 0
}
