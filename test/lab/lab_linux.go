package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Lab is the network.
type Lab struct {
	Node, Pods, Outside *Namespace
}

// Addresses of the network.
const (
	PodClient4 = "10.244.0.100"
	PodClient6 = "fd00:244::100"
	Outside4   = "192.0.2.2"
	Outside6   = "2001:db8::2"
	NodeOut4   = "192.0.2.1"
	NodeOut6   = "2001:db8::1"
)

// Pod returns the address of Pod number n (1 to 80).
func Pod(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 244, 0, byte(10 + n)}) }

// Pod6 returns the IPv6 address of Pod number n (1 to 80).
func Pod6(n int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf("fd00:244::%d", 10+n))
}

// BlackHole and BlackHole6 are Pod addresses that drop all packets.
const (
	BlackHole  = "10.244.0.99"
	BlackHole6 = "fd00:244::99"
)

// pods is the number of Pod addresses.
const pods = 80

// New creates the network. It skips the test if the user is not root, or if long specs were not
// requested. The network is removed when the test ends.
func New() *Lab {
	ginkgo.GinkgoHelper()
	Long()
	if os.Geteuid() != 0 {
		ginkgo.Skip("needs root, to make network namespaces")
	}
	l := &Lab{Node: NewNamespace("node"), Pods: NewNamespace("pods"), Outside: NewNamespace("outside")}
	l.Node.Connect("to-pods", l.Pods)
	l.Node.Connect("to-outside", l.Outside)

	l.Node.address("to-pods", "10.244.0.1/24", "fd00:244::1/64")
	l.Node.address("to-outside", NodeOut4+"/24", NodeOut6+"/64")
	l.Node.defaultRoute(Outside4, Outside6)
	addresses := []string{PodClient4 + "/24", PodClient6 + "/64"}
	for n := range pods {
		addresses = append(addresses, Pod(n+1).String()+"/24", Pod6(n+1).String()+"/64")
	}
	l.Pods.address("eth0", addresses...)
	l.Pods.defaultRoute("10.244.0.1", "fd00:244::1")
	l.Outside.address("eth0", Outside4+"/24", Outside6+"/64")
	l.Outside.defaultRoute(NodeOut4, NodeOut6)
	for _, clients := range []*Namespace{l.Pods, l.Outside} {
		// Reuse ports after 1 s instead of 60 s (ip-sysctl of the kernel): a fast machine,
		// or a long spec, would otherwise run out of ports.
		clients.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_tw_reuse", []byte("1"), 0) })
	}
	l.Node.blackHole("to-pods", BlackHole)
	l.Node.blackHole("to-pods", BlackHole6)
	l.Node.WaitForCarrier("to-pods", "to-outside")
	return l
}

// Connect connects a new interface of ns to the new eth0 of other by a veth pair.
func (ns *Namespace) Connect(link string, other *Namespace) {
	ginkgo.GinkgoHelper()
	ns.Do(func() error {
		cable := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: link}, PeerName: "eth0", PeerNamespace: netlink.NsFd(other.handle)}
		return netlink.LinkAdd(cable)
	})
}

// AddHost connects the node, by an interface of this name, with a new namespace that
// has eth0. Both interfaces are down and without addresses.
func (l *Lab) AddHost(nodeSide string) *Namespace {
	ginkgo.GinkgoHelper()
	ns := NewNamespace("behind " + nodeSide)
	l.Node.Connect(nodeSide, ns)
	return ns
}

// Namespace is a network namespace.
type Namespace struct {
	Name   string
	handle netns.NsHandle
	tun    *os.FileMode // of /dev/net/tun, nil for the machine's own
}

// WithTun returns the namespace with a /dev/net/tun that has these permissions
// (udev gives 0666, containers often less), or without one if mode is 0. Processes
// started in the namespace see it; the machine's own stays unchanged.
func (ns *Namespace) WithTun(mode os.FileMode) *Namespace {
	return &Namespace{Name: ns.Name, handle: ns.handle, tun: &mode}
}

// NewNamespace creates a network namespace as a host: only with loopback, which is up, and with settings that do not
// depend on the machine. It needs root.
func NewNamespace(name string) *Namespace {
	ginkgo.GinkgoHelper()
	ns := &Namespace{Name: name, handle: netns.None()}
	onOwnThread(func() error {
		var err error
		if ns.handle, err = netns.New(); err != nil {
			return err
		}
		// A new namespace inherits the machine's setting, which is on if it runs containers.
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0); err != nil {
			return err
		}
		// Make link-local addresses usable at once, without duplicate address detection.
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0); err != nil {
			return err
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
	ginkgo.DeferCleanup(func() { ns.handle.Close() })
	return ns
}

// onOwnThread runs f on a thread that ends after it, so that f may change the
// thread's namespace.
func onOwnThread(f func() error) {
	ginkgo.GinkgoHelper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- f()
	}()
	gomega.Expect(<-done).To(gomega.Succeed())
}

// Do runs f in the namespace, and fails the test if f fails. Sockets that f
// creates, and processes that it starts, belong to the namespace.
func (ns *Namespace) Do(f func() error) {
	ginkgo.GinkgoHelper()
	onOwnThread(func() error { return ns.enter(f) })
}

func (ns *Namespace) enter(f func() error) error {
	if err := netns.Set(ns.handle); err != nil {
		return fmt.Errorf("entering namespace %s: %w", ns.Name, err)
	}
	if ns.tun != nil {
		if err := mountTun(*ns.tun); err != nil {
			return fmt.Errorf("making /dev/net/tun: %w", err)
		}
	}
	return f()
}

// mountTun mounts a folder over /dev/net, visible to this thread and to the processes that it starts.
func mountTun(mode os.FileMode) error {
	const folder = "/dev/net"
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", folder, "tmpfs", 0, "mode=0755"); err != nil || mode == 0 {
		return err
	}
	device := folder + "/tun"
	if err := unix.Mknod(device, unix.S_IFCHR, int(unix.Mkdev(10, 200))); err != nil { // Documentation/admin-guide/devices.txt
		return err
	}
	return os.Chmod(device, mode) // independent of the umask
}

// Listen listens on a TCP address of the namespace. The listener is closed when
// the test ends.
func (ns *Namespace) Listen(address string) net.Listener {
	ginkgo.GinkgoHelper()
	var l net.Listener
	ns.Do(func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	})
	ginkgo.DeferCleanup(func() { l.Close() })
	return l
}

// ListenUDP opens a UDP socket on an address of the namespace. It is closed when
// the test ends.
func (ns *Namespace) ListenUDP(address string) *net.UDPConn {
	ginkgo.GinkgoHelper()
	var c net.PacketConn
	ns.Do(func() (err error) {
		c, err = net.ListenPacket("udp", address)
		return err
	})
	ginkgo.DeferCleanup(func() { c.Close() })
	return c.(*net.UDPConn)
}

// Dialer makes connections from the namespace. It keeps threads there: use one Dialer for many
// connections.
type Dialer struct {
	jobs  chan func()
	ended chan struct{}
}

// NewDialer returns a dialer with this number of threads, each for one dial at a time.
// It ends with the test: Dial fails from then on.
func (ns *Namespace) NewDialer(threads int) *Dialer {
	ginkgo.GinkgoHelper()
	d := &Dialer{jobs: make(chan func()), ended: make(chan struct{})}
	for range threads {
		ready := make(chan error)
		go func() {
			runtime.LockOSThread()
			ready <- netns.Set(ns.handle)
			for {
				select {
				case job := <-d.jobs:
					job()
				case <-d.ended:
					return
				}
			}
		}()
		gomega.Expect(<-ready).To(gomega.Succeed())
	}
	ginkgo.DeferCleanup(func() { close(d.ended) })
	return d
}

// Dial connects to a TCP address, from the local address given if it is not "".
func (d *Dialer) Dial(from, to string, timeout time.Duration) (*net.TCPConn, error) {
	dialer := net.Dialer{Timeout: timeout}
	if from != "" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	return dial[*net.TCPConn](d, &dialer, "tcp", to)
}

// DialUDP returns a UDP socket that is connected to an address: it sends to it
// and receives only from it.
func (d *Dialer) DialUDP(from, to string) (*net.UDPConn, error) {
	var dialer net.Dialer
	if from != "" {
		dialer.LocalAddr = &net.UDPAddr{IP: net.ParseIP(from)}
	}
	return dial[*net.UDPConn](d, &dialer, "udp", to)
}

func dial[C net.Conn](d *Dialer, dialer *net.Dialer, network, to string) (c C, err error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	select {
	case d.jobs <- func() {
		conn, err := dialer.Dial(network, to)
		done <- result{conn, err}
	}:
	case <-d.ended:
		return c, errEnded
	}
	r := <-done
	if r.err != nil {
		return c, r.err
	}
	return r.conn.(C), nil
}

// Client returns an HTTP client that opens a connection for each request.
func (d *Dialer) Client() *http.Client {
	return &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(_ context.Context, _, address string) (net.Conn, error) {
			return d.Dial("", address, 10*time.Second) // a flooded node may lose a SYN
		},
	}}
}

var errEnded = errors.New("the test has ended")

// Start starts cmd in the namespace.
func (ns *Namespace) Start(cmd *exec.Cmd) {
	ginkgo.GinkgoHelper()
	ns.Do(cmd.Start)
}

// Output runs a command in the namespace and returns what it printed. The test
// fails if the command does.
func (ns *Namespace) Output(name string, args ...string) string {
	ginkgo.GinkgoHelper()
	var out []byte
	ns.Do(func() (err error) {
		out, err = exec.Command(name, args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s %v: %w: %s", name, args, err, out)
		}
		return nil
	})
	return string(out)
}

func (ns *Namespace) address(link string, cidrs ...string) {
	ginkgo.GinkgoHelper()
	ns.Do(func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return err
		}
		for _, cidr := range cidrs {
			a, err := netlink.ParseAddr(cidr)
			if err != nil {
				return err
			}
			if a.IP.To4() == nil {
				a.Flags = 0x02 // IFA_F_NODAD: usable at once
			}
			if err := netlink.AddrAdd(l, a); err != nil {
				return fmt.Errorf("%s: %w", cidr, err)
			}
		}
		return nil
	})
}

func (ns *Namespace) defaultRoute(gateways ...string) {
	ginkgo.GinkgoHelper()
	ns.Do(func() error {
		for _, gateway := range gateways {
			if err := netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(gateway)}); err != nil {
				return fmt.Errorf("default route via %s: %w", gateway, err)
			}
		}
		return nil
	})
}

// WaitForCarrier waits until links are not only up but connected, and the kernel has
// configured them: the route to the link-local address comes last.
func (ns *Namespace) WaitForCarrier(links ...string) {
	ginkgo.GinkgoHelper()
	for _, name := range links {
		gomega.Eventually(func() (done bool) {
			ns.Do(func() error {
				l, err := netlink.LinkByName(name)
				if err != nil {
					return err
				}
				own := netlink.Route{LinkIndex: l.Attrs().Index, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL}
				routes, err := netlink.RouteListFiltered(netlink.FAMILY_V6, &own, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
				done = l.Attrs().OperState == netlink.OperUp &&
					slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Dst.IP.IsLinkLocalUnicast() })
				return err
			})
			return done
		}).WithTimeout(10*time.Second).Should(gomega.BeTrue(), "%s is connected", name)
	}
}

// blackHole drops packets to addr: it routes them to a network card that does
// not exist.
func (ns *Namespace) blackHole(link, addr string) {
	ginkgo.GinkgoHelper()
	ns.Do(func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		return netlink.NeighAdd(&netlink.Neigh{LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT,
			IP: net.ParseIP(addr), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 0x99}})
	})
}
