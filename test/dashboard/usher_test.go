package dashboard

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"
)

// usher is a process of the program under test.
type usher struct {
	*gexec.Session
	args   []string
	url    string   // of the dashboard
	inside []string // command that starts usher, or nil
	binary string   // with the race detector if empty
}

// run starts 'usher run' on manifests and waits until it serves.
func run(manifests ...string) *usher {
	GinkgoHelper()
	u := prepare(manifests...)
	u.start()
	return u
}

// prepare returns a process for manifests that is not started yet.
func prepare(manifests ...string) *usher {
	GinkgoHelper()
	dir := GinkgoT().TempDir()
	Expect(os.WriteFile(filepath.Join(dir, "all.yaml"), []byte(strings.Join(manifests, "---\n")), 0o644)).To(Succeed())
	address := freeAddress()
	return &usher{url: "http://" + address + "/", args: []string{"run", "--manifests", dir, "--portal=none", "--admin-address", address, "--log-format=text"}}
}

// demo starts 'usher demo'.
func demo() *usher {
	GinkgoHelper()
	address := freeAddress()
	u := &usher{url: "http://" + address + "/", args: []string{"demo", "--portal=none", "--admin-address", address}}
	u.start()
	return u
}

func (u *usher) start() {
	GinkgoHelper()
	var err error
	command := slices.Concat(u.inside, []string{cmp.Or(u.binary, usherBinary)}, u.args)
	u.Session, err = gexec.Start(exec.Command(command[0], command[1:]...), GinkgoWriter, GinkgoWriter)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() {
		u.Interrupt().Wait(20 * time.Second)
		Expect(string(u.Err.Contents())).NotTo(Or(ContainSubstring("DATA RACE"), ContainSubstring("panic:")))
	})
	Eventually(u.Err).WithTimeout(5 * time.Minute).Should(gbytes.Say("Serving"))
}

// freeAddress returns an address on which no process listens. Its port is below 32768, where the kernel's automatic
// ports begin, which concurrent suites use.
func freeAddress() string {
	GinkgoHelper()
	for {
		freed++
		address := fmt.Sprintf("127.0.0.1:%d", 20000+(os.Getpid()*32+freed)%12000)
		if l, err := net.Listen("tcp", address); err == nil {
			Expect(l.Close()).To(Succeed())
			return address
		}
	}
}

var freed int // number of addresses so far

// ask decodes a response of the API into v.
func (u *usher) ask(path string, v any) {
	GinkgoHelper()
	res, err := http.Get(u.url + "api/v1/" + path)
	Expect(err).NotTo(HaveOccurred())
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	Expect(err).NotTo(HaveOccurred())
	Expect(res.StatusCode).To(Equal(http.StatusOK), "%s: %s", path, body)
	Expect(json.Unmarshal(body, v)).To(Succeed(), string(body))
}

// connect connects to a Service in namespace default and returns its endpoint's message.
func (u *usher) connect(service string) string {
	GinkgoHelper()
	var answer struct {
		Ports []struct{ Listener string }
	}
	u.ask("services/default/"+service, &answer)
	conn, err := net.DialTimeout("tcp", answer.Ports[0].Listener, 5*time.Second)
	Expect(err).NotTo(HaveOccurred())
	defer conn.Close()
	Expect(conn.SetDeadline(time.Now().Add(10 * time.Second))).To(Succeed())
	said, err := io.ReadAll(conn)
	Expect(err).NotTo(HaveOccurred())
	return string(said)
}

// answering returns an endpoint that sends hello and closes the connection.
func answering() string {
	GinkgoHelper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(l.Close)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // the test is over
			}
			_, _ = fmt.Fprintln(conn, "hello") // the client may have closed the connection
			conn.Close()
		}
	}()
	return l.Addr().String()
}

// refusing returns an endpoint that refuses connections. The port belongs to a connected socket, so no other process
// can listen on it.
func refusing() string {
	GinkgoHelper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(conn.Close)
	return conn.LocalAddr().String()
}

// service returns the manifests of a Service in namespace default with these endpoints. Each endpoint's Pod has the
// Service's name with a number.
func service(name, clusterIP string, endpoints ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: default}\nspec:\n  clusterIP: %s\n  ports: [{name: http, port: 80, protocol: TCP}]\n", name, clusterIP)
	for i, e := range endpoints {
		host, port, _ := net.SplitHostPort(e)
		fmt.Fprintf(&b, "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %s-%d, namespace: default, labels: {kubernetes.io/service-name: %s}}\naddressType: IPv4\nports: [{name: http, port: %s, protocol: TCP}]\n", name, i, name, port)
		fmt.Fprintf(&b, "endpoints: [{addresses: [%q], conditions: {ready: true}, targetRef: {kind: Pod, namespace: default, name: %s-%d}}]\n", host, name, i)
	}
	return b.String()
}
