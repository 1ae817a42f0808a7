package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
)

// Children returns the processes that a process has started and that have not exited.
func Children(parent int) (pids []int) {
	ginkgo.GinkgoHelper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	for _, path := range stats {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		if fields := stat(pid); fields[1] == strconv.Itoa(parent) && fields[0] != "Z" {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Runs reports whether a process has not exited; a zombie has.
func Runs(pid int) bool { return stat(pid)[0] != "Z" }

// stat returns a process's state and parent: proc_pid_stat(5).
func stat(pid int) []string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // it may have exited
	_, rest, _ := strings.Cut(string(text), ") ")
	return append(strings.Fields(rest), "Z", "")
}
