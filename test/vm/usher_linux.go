//lint:file-ignore ST1001 checks are specs, and read like those in test files

package vm

import (
	"fmt"
	"net/netip"
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

	"github.com/usherproxy/usher/test/lab"
)

// family is IPv4 or IPv6, with the addresses of the lab and of the Service, and the redirect address of package portal.
type family struct {
	name, option                                               string // option of ip(8)
	pod                                                        func(n int) netip.Addr
	podClient, blackHole, toPods, toOutside, vip, landing, any netip.Addr
}

var (
	ipv4 = family{"IPv4", "-4", lab.Pod, netip.MustParseAddr(lab.PodClient4), netip.MustParseAddr(lab.BlackHole), netip.MustParseAddr("10.244.0.1"),
		netip.MustParseAddr(lab.NodeOut4), netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("192.0.0.117"), netip.IPv4Unspecified()}
	ipv6 = family{"IPv6", "-6", lab.Pod6, netip.MustParseAddr(lab.PodClient6), netip.MustParseAddr(lab.BlackHole6), netip.MustParseAddr("fd00:244::1"),
		netip.MustParseAddr(lab.NodeOut6), netip.MustParseAddr("fd00:10:96::10"), netip.MustParseAddr("fd75:7368:6572::1"), netip.IPv6Unspecified()}
)

// node is a lab with an usher process on its node, and the Services that it serves.
type node struct {
	*lab.Lab
	ip        family
	usher     *gexec.Session
	manifests string
}

func newNode(ip family) *node {
	GinkgoHelper()
	return &node{Lab: lab.New(), ip: ip, manifests: GinkgoT().TempDir()}
}

// start starts usher and waits until it serves.
func (n *node) start(flags ...string) {
	GinkgoHelper()
	args := append([]string{"run", "--manifests", n.manifests, "--log-format=text", "--log-level=debug", "--trace"}, flags...)
	if !slices.ContainsFunc(flags, func(f string) bool { return strings.HasPrefix(f, "--dial-timeouts") }) {
		// On a busy machine an emulated kernel takes longer to open a connection.
		args = append(args, "--dial-timeouts=3s,3s,3s,3s")
	}
	n.Node.Do(func() (err error) {
		n.usher, err = gexec.Start(exec.Command(usherPath, args...), GinkgoWriter, GinkgoWriter)
		return err
	})
	DeferCleanup(func() {
		n.usher.Kill().Wait(patience)
		Expect(string(n.usher.Err.Contents())).NotTo(ContainSubstring("panic:"))
	})
	Eventually(n.usher.Err).WithTimeout(eventually).Should(gbytes.Say("Serving"))
}

// service is a check's description of a Service; the rest has defaults.
type service struct {
	name      string
	vip       netip.AddrPort
	protocol  string
	spec      string // further lines of the spec, each indented by two spaces
	endpoints []netip.AddrPort
	nodePort  uint16 // 0: none
}

// diameter returns an SCTP Service. 3868 is the port of Diameter.
func (n *node) diameter(endpoints ...netip.AddrPort) service {
	return service{name: "diameter", vip: netip.AddrPortFrom(n.ip.vip, 3868), protocol: "SCTP", endpoints: endpoints}
}

// put writes the Service's manifests atomically, as editors do.
func (n *node) put(s service) {
	GinkgoHelper()
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: default}\nspec:\n  clusterIP: %q\n", s.name, s.vip.Addr())
	nodePort := ""
	if s.nodePort != 0 {
		nodePort = fmt.Sprintf(", nodePort: %d", s.nodePort)
	}
	fmt.Fprintf(&b, "  ports: [{name: main, port: %d, protocol: %s%s}]\n%s", s.vip.Port(), s.protocol, nodePort, s.spec)
	for i, e := range s.endpoints {
		fmt.Fprintf(&b, "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %s-%d, namespace: default, labels: {kubernetes.io/service-name: %s}}\n", s.name, i, s.name)
		fmt.Fprintf(&b, "addressType: %s\nports: [{name: main, port: %d, protocol: %s}]\nendpoints: [{addresses: [%q], conditions: {ready: true}}]\n", n.ip.name, e.Port(), s.protocol, e.Addr())
	}
	path := filepath.Join(n.manifests, s.name+".yaml")
	Expect(os.WriteFile(path+".new", []byte(b.String()), 0o644)).To(Succeed())
	Expect(os.Rename(path+".new", path)).To(Succeed())
}

// remove removes the Service's manifests.
func (n *node) remove(s service) {
	GinkgoHelper()
	Expect(os.Remove(filepath.Join(n.manifests, s.name+".yaml"))).To(Succeed())
}

// said expects a step in the trace that usher prints.
func (n *node) said(step string) {
	GinkgoHelper()
	Eventually(n.usher.Out).WithTimeout(patience).Should(gbytes.Say(step))
}

// threads returns the number of usher's threads.
func (n *node) threads() int {
	GinkgoHelper()
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", n.usher.Command.Process.Pid))
	Expect(err).NotTo(HaveOccurred())
	return len(tasks)
}

// eventually is the time that a change may take to become effective.
const eventually = 5 * time.Minute
