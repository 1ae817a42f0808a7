//lint:file-ignore ST1001 checks are specs, and read like those in test files

package vm

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"

	"github.com/usherproxy/usher/test/lab"
)

// notLoaded are the checks that run while SCTP is unused and not loaded. The last one loads it.
var notLoaded = []Check{
	{"--sctp=off: the SCTP Service is reported, the kernel's SCTP stays unloaded, and TCP is served", func() { switchedOff("--sctp=off", `--sctp=off`) }},
	{"--sctp=auto: the SCTP Service is reported, the kernel's SCTP stays unloaded, and TCP is served", func() { switchedOff("--sctp=auto", `the kernel's SCTP module is not loaded`) }},
	{"--sctp=on: the kernel's SCTP is loaded, and the Service is served", switchedOn},
	{"--sctp=off: SCTP is not served even if it is loaded", stillOff},
}

// withoutNetfilter are the checks, in addition to SCTP's, for a node with an old or minimal kernel.
var withoutNetfilter = []Check{
	{"--portal=auto: selects the address portal, logs that iptables is skipped, and serves TCP and UDP, also if an endpoint refuses", autoPortal},
}

// addressChecks are the checks of the portals address and none. They run once.
var addressChecks = []Check{
	{"SCTP through the address portal: serves node ports on an address that is added later", laterAddress},
	{"SCTP through no portal: listens on loopback", withoutPortal},
}

// web returns a TCP Service with one endpoint, which sends its name.
func web(n *node) service {
	GinkgoHelper()
	at := netip.AddrPortFrom(lab.Pod(1), 8080)
	lab.Serve(n.Pods.Listen(at.String()), func(c net.Conn) { fmt.Fprintln(c, at) })
	return service{name: "web", vip: netip.MustParseAddrPort("10.96.0.11:80"), protocol: "TCP", endpoints: []netip.AddrPort{at}}
}

// answersTCP expects that a TCP Service is served to Pods and to the node.
func answersTCP(n *node, s service) {
	GinkgoHelper()
	for _, from := range []*lab.Namespace{n.Pods, n.Node, n.Outside} {
		c, err := from.NewDialer(1).Dial("", s.vip.String(), patience)
		Expect(err).NotTo(HaveOccurred())
		Expect(c.SetDeadline(time.Now().Add(patience))).To(Succeed())
		line, err := bufio.NewReader(net.Conn(c)).ReadString('\n')
		Expect(err).NotTo(HaveOccurred())
		Expect(line).To(Equal(s.endpoints[0].String() + "\n"))
		c.Close()
	}
}

// loaded reports whether the kernel's SCTP module is loaded.
func loaded() bool {
	_, err := os.Stat("/sys/module/sctp")
	return err == nil
}

// reports expects that the log contains the reason why SCTP is not served.
func (n *node) reports(why string) {
	GinkgoHelper()
	Expect(string(n.usher.Err.Contents())).To(MatchRegexp("Service port is not served as configured.*" + why + ".*reason=SCTPOff"))
}

func switchedOff(flag, why string) {
	Expect(loaded()).To(BeFalse(), "before usher starts")
	n := newNode(ipv4)
	s := web(n)
	n.put(s)
	n.put(n.diameter(netip.AddrPortFrom(lab.Pod(1), 3868)))
	n.start(flag, "--portal-check-interval=100ms")
	n.reports(why)
	n.said("default/diameter.*not served: SCTP is not served")
	answersTCP(n, s)
	time.Sleep(500 * time.Millisecond) // time for some retries
	Expect(loaded()).To(BeFalse(), "usher must not load it")
}

func switchedOn() {
	Expect(loaded()).To(BeFalse(), "before usher starts")
	n := newNode(ipv4)
	s := web(n)
	n.put(s)
	d := n.diameter(netip.AddrPortFrom(lab.Pod(1), 3868))
	n.put(d)
	// This instance waits until another process loads SCTP.
	n.start("--sctp=auto", "--portal-check-interval=200ms")
	n.reports("the kernel's SCTP module is not loaded")

	other := newNode(ipv4)
	other.put(d)
	other.start("--sctp=on")
	Expect(loaded()).To(BeTrue())
	for _, node := range []*node{n, other} {
		e := startEndpoint(node.Pods, lab.Pod(1), false)
		Eventually(func() (name netip.AddrPort, err error) {
			p, name, err := ask(node.Pods, anyAddr, d.vip)
			if err == nil {
				p.close()
			}
			return name, err
		}).WithTimeout(eventually).Should(Equal(e.addr))
	}
	Eventually(n.usher.Err).WithTimeout(eventually).Should(gbytes.Say("Problem with service port resolved"))
	answersTCP(n, s)
}

func stillOff() {
	n := newNode(ipv4)
	d := n.diameter(startEndpoint(n.Pods, lab.Pod(1), false).addr)
	n.put(d)
	n.start("--sctp=off")
	n.reports("--sctp=off")
	_, _, err := ask(n.Pods, anyAddr, d.vip)
	Expect(err).To(HaveOccurred())
}

func autoPortal() {
	c := newFamilyCheck(newNode(ipv4))
	c.start("--portal=auto")
	said := string(c.usher.Err.Contents())
	Expect(said).To(MatchRegexp(`Portal skipped.*portal=iptables`))
	Expect(said).NotTo(ContainSubstring("install the iptables package"), "it is installed")
	Expect(said).To(MatchRegexp(`Portal selected.*portal=address`))
	c.served()
	for _, refusing := range []string{"8080", "5300"} {
		Expect(string(c.usher.Out.Contents())).To(MatchRegexp(`attempt 1 → 10\.244\.0\.12:` + refusing + ` .*connection refused`))
	}
}
