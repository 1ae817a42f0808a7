package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
)

// Memory is a cgroup for a program and its children, to measure and limit their memory: cgroups(7).
type Memory struct {
	dir   string
	files memoryFiles
}

// memoryFiles are the names of a cgroup's files, and the prefix of the line with the number of
// processes that were killed when out of memory.
type memoryFiles struct{ used, peak, limit, kills string }

var (
	memoryV1 = memoryFiles{"memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.limit_in_bytes", "memory.oom_control"}
	memoryV2 = memoryFiles{"memory.current", "memory.peak", "memory.max", "memory.events"}
)

// NewMemory returns a cgroup without a limit, which is removed when the test ends. The error is the reason why
// there is none: the controller may be missing or not permitted.
func NewMemory() (*Memory, error) {
	ginkgo.GinkgoHelper()
	var because []error
	for parent, files := range map[string]memoryFiles{"/sys/fs/cgroup/memory": memoryV1, "/sys/fs/cgroup": memoryV2} {
		dir, err := os.MkdirTemp(parent, "usher-")
		if err != nil {
			because = append(because, err)
			continue
		}
		ginkgo.DeferCleanup(func() { // as soon as it has no process
			gomega.Eventually(func() error { return os.Remove(dir) }).WithTimeout(10 * time.Second).Should(gomega.Succeed())
		})
		if _, err := os.Stat(filepath.Join(dir, files.limit)); err != nil {
			because = append(because, err)
			continue
		}
		return &Memory{dir, files}, nil
	}
	return nil, errors.Join(because...)
}

// Wrap returns a program that runs another one in the cgroup.
func (m *Memory) Wrap(program string) string {
	ginkgo.GinkgoHelper()
	_, err := os.ReadFile(program) // so that the kernel charges this process, which has read it first, and not the cgroup
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	path := filepath.Join(ginkgo.GinkgoT().TempDir(), filepath.Base(program))
	script := fmt.Sprintf("#!/bin/sh\necho $$ >%s/cgroup.procs && exec %s \"$@\"\n", m.dir, program)
	gomega.Expect(os.WriteFile(path, []byte(script), 0o755)).To(gomega.Succeed())
	return path
}

// Limit limits the memory, in bytes.
func (m *Memory) Limit(bytes int64) {
	ginkgo.GinkgoHelper()
	gomega.Expect(os.WriteFile(filepath.Join(m.dir, m.files.limit), []byte(strconv.FormatInt(bytes, 10)), 0)).To(gomega.Succeed())
}

// Used returns the number of bytes in use, including the kernel's memory for the programs.
func (m *Memory) Used() int64 { return m.read(m.files.used, "") }

// Peak returns the maximum number of bytes in use: 0 where the kernel does not report it.
func (m *Memory) Peak() int64 { return m.read(m.files.peak, "") }

// Kills returns the number of processes that were killed for exceeding the limit.
func (m *Memory) Kills() int64 { return m.read(m.files.kills, "oom_kill ") }

// read returns the number in a file, after a word if that is not "".
func (m *Memory) read(file, word string) int64 {
	ginkgo.GinkgoHelper()
	text, err := os.ReadFile(filepath.Join(m.dir, file))
	if os.IsNotExist(err) {
		return 0
	}
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, word); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			gomega.Expect(err).NotTo(gomega.HaveOccurred())
			return n
		}
	}
	ginkgo.Fail(fmt.Sprintf("no %q in %s: %s", word, file, text))
	return 0
}
