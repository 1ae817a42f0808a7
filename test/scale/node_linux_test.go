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

// openFiles is the limit on open files that usher runs with: one that common
// systems give, and in which 10,000 listeners fit.
const openFiles = 20_000

// usher is a process of the program under test.
type usher struct {
	*gexec.Session
	began time.Time
}

// start starts usher and waits until it serves. Who calls it sees to its end.
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

// logged is a line of the log.
type logged struct {
	Message string `json:"msg"`
	Time    time.Time
	Took    string
}

// log returns the last line with that message.
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

// served returns when the portals were open.
func (u *usher) served() time.Time {
	GinkgoHelper()
	return u.log("Serving").Time
}

// resident returns how many MiB of memory usher holds.
func (u *usher) resident() float64 {
	GinkgoHelper()
	return float64(lab.Resident(u.Command.Process.Pid)) / (1 << 20)
}

// end kills usher if it still runs.
func (u *usher) end() { u.Kill().Wait(20 * time.Second) }

// killed kills usher and returns when.
func (u *usher) killed() time.Time {
	GinkgoHelper()
	at := time.Now()
	Expect(u.Command.Process.Signal(syscall.SIGKILL)).To(Succeed())
	Eventually(u).WithTimeout(10 * time.Second).Should(gexec.Exit())
	return at
}
