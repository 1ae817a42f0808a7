package test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/test/lab"
)

// kube-proxy's flags name the interfaces of this node's Pods.
var _ = Describe("A Service with externalTrafficPolicy Local and no endpoint on this node, with the portal", func() {
	for _, portal := range []string{"iptables", "nftables", "address"} {
		It(portal+": serves only Pods behind the Pod bridge, once that exists", func() {
			l, u := startLocalMode(portal, "--detect-local-mode=BridgeInterface", "--pod-bridge-interface=cni0")
			Expect(string(u.Err.Contents())).To(MatchRegexp("No matching Pod interface exists.*cni0"))
			l.expectOthersOut()
			l.Node.Output("sh", "-c", `ip link add cni0 type bridge; ip link set cni0 up
				ip addr add 10.245.0.1/24 dev cni0; ip addr add fd00:245::1/64 dev cni0 nodad`)
			for n := 2; n < 4; n++ {
				name := fmt.Sprint("port", n)
				pod := l.AddHost(name)
				l.Node.Output("ip", "link", "set", name, "master", "cni0", "up")
				pod.Output("sh", "-c", fmt.Sprintf(`ip addr add 10.245.0.%[1]d/24 dev eth0; ip addr add fd00:245::%[1]d/64 dev eth0 nodad; ip link set eth0 up
					ip route add default via 10.245.0.1; ip -6 route add default via fd00:245::1`, n))
				l.expectLocal(pod)
			}
			l.expectOthersOut()
		})

		It(portal+": serves only Pods behind interfaces with the name prefix, whenever these appear", func() {
			l, _ := startLocalMode(portal, "--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=cali")
			for n := 2; n < 4; n++ {
				name := fmt.Sprint("cali", n)
				pod := l.AddHost(name)
				l.Node.Output("sh", "-c", fmt.Sprintf(`ip link set %[1]s up; ip addr add 169.254.1.1/32 dev %[1]s; ip addr add fe80::1/64 dev %[1]s nodad
					ip route add 10.245.0.%[2]d/32 dev %[1]s; ip -6 route add fd00:245::%[2]d/128 dev %[1]s`, name, n))
				pod.Output("sh", "-c", fmt.Sprintf(`ip addr add 10.245.0.%[1]d/32 dev eth0; ip addr add fd00:245::%[1]d/128 dev eth0 nodad; ip link set eth0 up
					ip route add 169.254.1.1 dev eth0 scope link; ip route add default via 169.254.1.1; ip -6 route add default via fe80::1 dev eth0`, n))
				l.expectLocal(pod)
			}
			l.expectOthersOut()
		})
	}
})

// localLab is a lab in which usher serves a Service whose only endpoint is on another node.
type localLab struct {
	*lab.Lab
	endpoints map[string]netip.AddrPort // by VIP
	udp       map[string]netip.AddrPort
}

func startLocalMode(portal string, args ...string) (*localLab, *usher) {
	GinkgoHelper()
	if portal == "iptables" {
		missing("iptables")
	}
	l := &localLab{lab.New(), map[string]netip.AddrPort{}, map[string]netip.AddrPort{}}
	dir := manifestsDir()
	for i, ip := range []string{"203.0.113.10", "2001:db8:1::10"} {
		endpoint, clusterIP := lab.Pod(1), "10.96.0.1%d"
		if i == 1 {
			endpoint, clusterIP = lab.Pod6(1), "fd00:10:96::1%d"
		}
		spec := "  type: LoadBalancer\n  externalTrafficPolicy: Local\nstatus: {loadBalancer: {ingress: [{ip: \"" + ip + "\"}]}}\n"
		tcp, udp := startBackend(l.Pods, endpoint, 8080).addr, startEcho(l.Pods, endpoint)
		service{name: fmt.Sprint("tcp", i), clusterIP: fmt.Sprintf(clusterIP, 0), port: 80, spec: spec, endpoints: []netip.AddrPort{tcp}}.write(dir)
		service{name: fmt.Sprint("udp", i), clusterIP: fmt.Sprintf(clusterIP, 1), port: 53, protocol: "UDP", spec: spec, endpoints: []netip.AddrPort{udp}}.write(dir)
		l.endpoints[net.JoinHostPort(ip, "80")] = tcp
		l.udp[net.JoinHostPort(ip, "53")] = udp
	}
	return l, startUsher(l.Node, dir, append([]string{"--portal=" + portal, "--node-name=this"}, args...)...)
}

// expectLocal expects that the Service answers clients in ns.
func (l *localLab) expectLocal(ns *lab.Namespace) {
	GinkgoHelper()
	d := ns.NewDialer(1)
	for vip, endpoint := range l.endpoints {
		Expect(ask(d, vip)).To(Equal(endpoint), "%s, %s", ns.Name, vip)
	}
	for vip, endpoint := range l.udp {
		Expect(askWho(d, "", vip)).To(Equal(endpoint), "%s, %s", ns.Name, vip)
	}
}

// expectOthersOut expects that the Service answers neither a host outside nor clients behind another interface of the
// node.
func (l *localLab) expectOthersOut() {
	GinkgoHelper()
	for _, ns := range []*lab.Namespace{l.Outside, l.Pods} {
		d := ns.NewDialer(1)
		for vip := range l.endpoints {
			c, err := d.Dial("", vip, 300*time.Millisecond)
			if err == nil { // the address portal drops nothing
				_, err = readName(c)
				c.Close()
			}
			Expect(err).To(HaveOccurred(), "%s, %s", ns.Name, vip)
		}
		for vip := range l.udp {
			c, err := d.DialUDP("", vip)
			Expect(err).NotTo(HaveOccurred())
			Expect(exchange(c, []byte(who), 300*time.Millisecond)).Error().To(MatchError(os.ErrDeadlineExceeded), "%s, %s", ns.Name, vip)
			c.Close()
		}
	}
}
