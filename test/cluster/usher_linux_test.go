package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"
	gomegatypes "github.com/onsi/gomega/types"

	"github.com/usherproxy/usher/test/lab"
)

// These are the port of usher's public health server and the URL of its admin server on the node.
const (
	healthzPort = "10256"
	adminURL    = "http://127.0.0.1:10249"
)

// usher is a process of the program under test.
type usher struct {
	*gexec.Session
	cluster *cluster
}

// usher starts usher with the least role on the node and waits until it serves. The end of the spec kills it if it
// still runs.
func (c *cluster) usher(args ...string) *usher {
	GinkgoHelper()
	return c.launch(usherRace, append([]string{"--trace"}, args...)...).serving()
}

// releasedUsher starts the release build, for measurements.
func (c *cluster) releasedUsher(args ...string) *usher {
	GinkgoHelper()
	return c.launch(usherReleased, args...).serving()
}

// connect starts 'kubectl usher connect' on the node as usher starts 'usher run', and waits until it serves.
func (c *cluster) connect(args ...string) *usher {
	GinkgoHelper()
	return c.launchCommand(kubectlUsherRace(), "connect", append([]string{"--trace", "--socks="}, args...)...).serving()
}

// launch starts usher on the node. args override the default flags.
func (c *cluster) launch(program string, args ...string) *usher {
	GinkgoHelper()
	return c.launchCommand(program, "run", args...)
}

func (c *cluster) launchCommand(program, command string, args ...string) *usher {
	GinkgoHelper()
	cmd := exec.Command(program, append([]string{command, "--node-name=" + here, "--portal=iptables", "--log-format=text",
		"--kubeconfig=" + leastRole(plane.Server())}, args...)...)
	u := &usher{cluster: c, Session: startIn(c.Node, cmd)}
	DeferCleanup(func() {
		u.Kill().Wait(30 * time.Second)
		Expect(string(u.Err.Contents())).NotTo(ContainSubstring("DATA RACE"))
		Expect(string(u.Err.Contents())).NotTo(ContainSubstring("panic:"))
	})
	return u
}

// startIn starts a command in a namespace, as the leader of a process group. The kernel kills it if the test's process
// dies.
func startIn(ns *lab.Namespace, cmd *exec.Cmd) *gexec.Session {
	GinkgoHelper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true} // see control.start
	started := make(chan *gexec.Session)
	go func() {
		defer GinkgoRecover()
		ns.Do(func() error {
			session, err := gexec.Start(cmd, GinkgoWriter, GinkgoWriter)
			started <- session
			if err == nil {
				<-session.Exited
			}
			return err
		})
	}()
	session := <-started
	Expect(session).NotTo(BeNil())
	return session
}

// serving waits until usher serves the current Services.
func (u *usher) serving() *usher {
	GinkgoHelper()
	Eventually(u.Err).WithTimeout(time.Minute).Should(gbytes.Say("Serving"))
	return u
}

// stop terminates usher with SIGTERM and waits until it exits.
func (u *usher) stop() {
	GinkgoHelper()
	u.Terminate()
	Eventually(u.Session).WithTimeout(time.Minute).Should(gexec.Exit(0))
}

// listeners returns the number of listening TCP sockets on the node. All are usher's.
func (u *usher) listeners() int {
	GinkgoHelper()
	return len(strings.Split(strings.TrimSpace(u.cluster.Node.Output("ss", "-Hltn")), "\n"))
}

// answer is the response of an HTTP server.
type answer struct {
	Code   int
	Body   string
	Header http.Header
}

// get sends a request to an HTTP server.
func get(d *lab.Dialer, url string) (answer, error) {
	response, err := d.Client().Get(url)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, string(body), response.Header}, err
}

// getting returns a function for Eventually that calls get.
func getting(d *lab.Dialer, url string) func() (answer, error) {
	return func() (answer, error) { return get(d, url) }
}

// code matches an answer with this status code.
func code(want int) gomegatypes.GomegaMatcher {
	return HaveField("Code", want)
}

// fields returns the JSON object in the body.
func (a answer) fields() (object map[string]any) {
	GinkgoHelper()
	Expect(json.Unmarshal([]byte(a.Body), &object)).To(Succeed(), a.Body)
	return object
}

func (a answer) String() string { return fmt.Sprintf("%d %s", a.Code, a.Body) }

// These match the errors of clients whose connection is not served.
var (
	refused  = MatchError(syscall.ECONNREFUSED)
	timedOut = Satisfy(func(err error) bool {
		var n net.Error
		return errors.As(err, &n) && n.Timeout()
	})
)
