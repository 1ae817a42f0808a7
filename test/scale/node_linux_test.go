package scale

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"

	"github.com/usherproxy/usher/test/lab"
)

// openFiles is usher's limit on open files. It is common on systems and sufficient for 10,000 listeners.
const openFiles = 20_000

// usher is a process of the program under test.
type usher struct {
	*gexec.Session
	began time.Time
}

// start starts usher and waits until it serves. The caller must end it.
func start(ns *lab.Namespace, dir, portal string, args ...string) *usher {
	GinkgoHelper()
	return startWithin(openFiles, ns, dir, portal, args...)
}

// startWithin is start with another limit on open files.
func startWithin(files int, ns *lab.Namespace, dir, portal string, args ...string) *usher {
	GinkgoHelper()
	// prlimit(1) is in util-linux, but a shell is everywhere.
	command := fmt.Sprintf(`ulimit -n %d && exec "$@"`, files)
	args = append([]string{"-c", command, "usher", usherBinary, "run", "--manifests", dir, "--portal=" + portal, "--log-format=json"}, args...)
	u := &usher{began: time.Now()}
	ns.Do(func() (err error) {
		u.Session, err = gexec.Start(exec.Command("sh", args...), GinkgoWriter, GinkgoWriter)
		return err
	})
	Eventually(u.Err).WithTimeout(time.Minute).WithPolling(time.Millisecond).Should(gbytes.Say(`"Serving"`))
	return u
}

// logged is a log line.
type logged struct {
	Message string `json:"msg"`
	Time    time.Time
	Took    string
}

// log returns the last line with this message.
func (u *usher) log(message string) (last logged) {
	GinkgoHelper()
	found := false
	for line := range bytes.Lines(u.Err.Contents()) {
		var l logged
		if json.Unmarshal(line, &l) == nil && l.Message == message {
			last, found = l, true
		}
	}
	Expect(found).To(BeTrue(), "%q in the log", message)
	return last
}

// served returns the time at which the portals were open.
func (u *usher) served() time.Time {
	GinkgoHelper()
	return u.log("Serving").Time
}

// resident returns usher's resident memory in MiB.
func (u *usher) resident() float64 {
	GinkgoHelper()
	return float64(lab.Resident(u.Command.Process.Pid)) / (1 << 20)
}

// end kills usher if it still runs.
func (u *usher) end() { u.Kill().Wait(20 * time.Second) }

// killed kills usher and returns the time.
func (u *usher) killed() time.Time {
	GinkgoHelper()
	at := time.Now()
	Expect(u.Command.Process.Signal(syscall.SIGKILL)).To(Succeed())
	Eventually(u).WithTimeout(30 * time.Second).Should(gexec.Exit())
	return at
}
