package test

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"

	"github.com/usherproxy/usher/test/lab"
)

// Non-root users must be able to read the files that specs write.
func init() { syscall.Umask(0o022) }

// usher is a process of the program under test.
type usher struct {
	*gexec.Session
	manifests string // the folder that it watches
}

// startUsher starts usher in ns on the manifests folder and waits until it serves. The test's end kills it if it still
// runs.
func startUsher(ns *lab.Namespace, manifests string, args ...string) *usher {
	GinkgoHelper()
	u := launchUsher(ns, manifests, args...)
	Eventually(u.Err).WithTimeout(time.Minute).Should(gbytes.Say("Serving"))
	return u
}

// launchConnect starts 'kubectl usher connect' in ns on the manifests folder, without the SOCKS proxy unless args ask
// for it. startConnect also waits until it serves.
func launchConnect(ns *lab.Namespace, manifests string, args ...string) *usher {
	GinkgoHelper()
	return launch(ns, exec.Command(kubectlUsher(), append([]string{"connect", "--manifests", manifests, "--socks=", "--log-format=text"}, args...)...), manifests)
}

func startConnect(ns *lab.Namespace, manifests string, args ...string) *usher {
	GinkgoHelper()
	u := launchConnect(ns, manifests, args...)
	Eventually(u.Err).WithTimeout(time.Minute).Should(gbytes.Say("Serving"))
	return u
}

// longDials gives each attempt to connect more time. With the default of 250 ms, usher tries another endpoint if it gets
// no CPU time for so long, and a spec that counts the connections to each endpoint fails.
const longDials = "--dial-timeouts=20s,20s,20s"

func launchUsher(ns *lab.Namespace, manifests string, args ...string) *usher {
	GinkgoHelper()
	return launch(ns, exec.Command(usherBinary, append([]string{"run", "--manifests", manifests, "--log-format=text"}, args...)...), manifests)
}

// forward makes a host forward packets.
func forward(ns *lab.Namespace) {
	GinkgoHelper()
	ns.Output("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
}

// launch starts usher in ns, or in the machine's own network if ns is nil, where it must have no portal.
func launch(ns *lab.Namespace, cmd *exec.Cmd, manifests string) *usher {
	GinkgoHelper()
	u := &usher{manifests: manifests}
	start := func() (err error) {
		u.Session, err = gexec.Start(cmd, GinkgoWriter, GinkgoWriter)
		return err
	}
	if ns != nil {
		ns.Do(start)
	} else {
		Expect(start()).To(Succeed())
	}
	DeferCleanup(func() {
		u.Kill().Wait(30 * time.Second)
		Expect(string(u.Err.Contents())).NotTo(ContainSubstring("DATA RACE"))
		Expect(string(u.Err.Contents())).NotTo(ContainSubstring("panic:"))
	})
	return u
}

// usherForNobody returns a copy of usher that every user may execute; kubectlUsherForNobody does so for kubectl-usher.
func usherForNobody() string {
	GinkgoHelper()
	return forNobody(usherBinary, "usher")
}

func kubectlUsherForNobody() string {
	GinkgoHelper()
	return forNobody(kubectlUsher(), "kubectl-usher")
}

func forNobody(program, name string) string {
	GinkgoHelper()
	dir, err := os.MkdirTemp("", "usher-for-nobody-")
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(os.RemoveAll, dir)
	Expect(os.Chmod(dir, 0o755)).To(Succeed())
	binary, err := os.ReadFile(program)
	Expect(err).NotTo(HaveOccurred())
	Expect(os.WriteFile(filepath.Join(dir, name), binary, 0o755)).To(Succeed())
	return filepath.Join(dir, name)
}

// asNobody returns a command that runs as a user without any privilege.
func asNobody(program string, args ...string) *exec.Cmd {
	GinkgoHelper()
	missing("setpriv")
	cmd := exec.Command("setpriv", append([]string{"--reuid=65534", "--regid=65534", "--clear-groups", program}, args...)...)
	cmd.Dir = "/" // this one is not accessible if it is below root's home
	return cmd
}

// stop terminates usher with SIGTERM and waits until it exits.
func (u *usher) stop() {
	GinkgoHelper()
	u.Terminate()
	Eventually(u).WithTimeout(time.Minute).Should(gexec.Exit(0))
}

// manifestsDir returns an empty folder for manifests.
func manifestsDir() string { return GinkgoT().TempDir() }

// service describes a Service; zero fields have defaults.
type service struct {
	name       string
	clusterIP  string
	port       int
	protocol   string // TCP if empty
	portFields string // further fields of the port, with a comma in front
	metadata   string // further fields of the metadata, with a comma in front
	spec       string // further lines of the spec, each indented by two blanks
	endpoints  []netip.AddrPort
	node       string // the endpoints' node; empty if the slices name none
}

// yaml returns the manifests of the Service, with one slice per endpoint.
func (s service) yaml() string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: default%s}\nspec:\n  clusterIP: %q\n", s.name, s.metadata, s.clusterIP)
	protocol := cmp.Or(s.protocol, "TCP")
	fmt.Fprintf(&b, "  ports: [{name: main, port: %d, protocol: %s%s}]\n%s", s.port, protocol, s.portFields, s.spec)
	for i, e := range s.endpoints {
		family := "IPv4"
		if e.Addr().Is6() {
			family = "IPv6"
		}
		fmt.Fprintf(&b, "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %s-%d, namespace: default, labels: {kubernetes.io/service-name: %s}}\n", s.name, i, s.name)
		on := ""
		if s.node != "" {
			on = ", nodeName: " + s.node
		}
		fmt.Fprintf(&b, "addressType: %s\nports: [{name: main, port: %d, protocol: %s}]\nendpoints: [{addresses: [%q], conditions: {ready: true}%s}]\n", family, e.Port(), protocol, e.Addr(), on)
	}
	return b.String()
}

// write writes the Service's manifests to dir, in one step as editors do.
func (s service) write(dir string) {
	GinkgoHelper()
	writeFile(filepath.Join(dir, s.name+".yaml"), s.yaml())
}

func writeFile(path, text string) {
	GinkgoHelper()
	Expect(os.WriteFile(path+".new", []byte(text), 0o644)).To(Succeed())
	Expect(os.Rename(path+".new", path)).To(Succeed())
}

// vip returns the address to which clients connect.
func (s service) vip() string { return net.JoinHostPort(s.clusterIP, fmt.Sprint(s.port)) }

// backend is a server in a Pod. It sends its address in a line and then sends back all it receives.
type backend struct {
	addr netip.AddrPort

	mu       sync.Mutex
	accepted int
}

// startBackend starts a backend on an address of ns.
func startBackend(ns *lab.Namespace, addr netip.Addr, port uint16) *backend {
	GinkgoHelper()
	b := &backend{addr: netip.AddrPortFrom(addr, port)}
	lab.Serve(ns.Listen(b.addr.String()), func(c net.Conn) {
		b.mu.Lock()
		b.accepted++
		b.mu.Unlock()
		fmt.Fprintln(c, b.addr)
		_, _ = io.Copy(c, c)
	})
	return b
}

func (b *backend) connections() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.accepted
}

// ask connects to a Service of backends and returns the endpoint that answered.
func ask(d *lab.Dialer, vip string) (netip.AddrPort, error) { return askFrom(d, "", vip) }

func askFrom(d *lab.Dialer, from, vip string) (netip.AddrPort, error) {
	c, err := d.Dial(from, vip, 10*time.Second)
	if err != nil {
		return netip.AddrPort{}, err
	}
	defer c.Close()
	return readName(c)
}

// readName reads the first line of a backend.
func readName(c net.Conn) (netip.AddrPort, error) { return readNameWithin(c, 10*time.Second) }

func readNameWithin(c net.Conn, patience time.Duration) (netip.AddrPort, error) {
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return netip.AddrPort{}, err
	}
	defer c.SetReadDeadline(time.Time{}) // later reads have their own deadlines
	var line []byte
	buf := make([]byte, 1)
	for {
		if _, err := c.Read(buf); err != nil {
			return netip.AddrPort{}, fmt.Errorf("reading the backend's name: %w", err)
		}
		if buf[0] == '\n' {
			return netip.ParseAddrPort(string(line))
		}
		line = append(line, buf[0])
	}
}

// refused and reset match the errors that clients get for a connection that is not served.
var (
	refused = MatchError(syscall.ECONNREFUSED)
	reset   = MatchError(syscall.ECONNRESET)
)

// unserved checks the clients' errors while a portal's rules and routes exist and no usher process listens. With
// iptables and nftables, clients time out; with other portals they are refused.
func unserved(d *lab.Dialer, portal, vip string) {
	GinkgoHelper()
	connect := func() error {
		c, err := d.Dial("", vip, time.Second)
		if err == nil {
			c.Close()
		}
		return err
	}
	if portal == "iptables" || portal == "nftables" {
		Eventually(connect).WithTimeout(30*time.Second).Should(Satisfy(os.IsTimeout), "clients wait for the next instance")
		return
	}
	Eventually(connect).WithTimeout(30 * time.Second).Should(refused)
}
