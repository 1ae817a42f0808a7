package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

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

// Child waits until a process has one child, and returns it.
func Child(parent int) int {
	ginkgo.GinkgoHelper()
	var pids []int
	gomega.Eventually(func() []int {
		pids = Children(parent)
		return pids
	}).WithTimeout(time.Minute).Should(gomega.HaveLen(1))
	return pids[0]
}

// SavedAffinities returns the contents of the files in which a keeper, a process, holds session affinity.
func SavedAffinities(keeper int) (text []byte) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", keeper)) // its only error is a bad pattern
	for _, file := range files {
		if to, _ := os.Readlink(file); strings.HasPrefix(to, "/memfd:affinities") {
			content, _ := os.ReadFile(file) // another version may just have replaced it
			text = append(text, content...)
		}
	}
	return text
}

// Runs reports whether a process has not exited; a zombie has.
func Runs(pid int) bool { return stat(pid)[0] != "Z" }

// stat returns a process's state and parent: proc_pid_stat(5).
func stat(pid int) []string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // it may have exited
	_, rest, _ := strings.Cut(string(text), ") ")
	return append(strings.Fields(rest), "Z", "")
}
