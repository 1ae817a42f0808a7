package test

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("The address portal on a node with processes on *:80 and *:443", func() {
	const port1, port2 = 80, 443
	var (
		l    *lab.Lab
		dir  string
		all  []service
		vips []string // of all
		pod  *backend
	)
	BeforeEach(func() {
		l = lab.New()
		dir, all, vips = manifestsDir(), nil, nil
		pod = startBackend(l.Pods, lab.Pod(1), 8080)
		pod6 := startBackend(l.Pods, lab.Pod6(1), 8080)
		for n, port := range []uint16{port1, port2} {
			startBackend(l.Node, netip.IPv6Unspecified(), port) // IPv4 and IPv6
			for i := range 5 {
				all = append(all,
					service{name: fmt.Sprintf("four%d-%d", n, i), clusterIP: fmt.Sprintf("10.96.%d.%d", n, 10+i), port: int(port), endpoints: []netip.AddrPort{pod.addr}},
					service{name: fmt.Sprintf("six%d-%d", n, i), clusterIP: fmt.Sprintf("fd00:10:96::%d:%d", n, 10+i), port: int(port), endpoints: []netip.AddrPort{pod6.addr}})
			}
		}
		for _, s := range all {
			s.write(dir)
			vips = append(vips, s.vip())
		}
		forward(l.Node)
	})
	served := func() {
		GinkgoHelper()
		for name, from := range map[string]*lab.Namespace{"the node": l.Node, "a Pod": l.Pods, "outside": l.Outside} {
			client := from.NewDialer(1)
			for _, s := range all {
				Expect(ask(client, s.vip())).To(Equal(s.endpoints[0]), "%s from %s", s.vip(), name)
				other := net.JoinHostPort(s.clusterIP, map[int]string{port1: "443", port2: "80"}[s.port])
				Expect(ask(client, other)).Error().To(refused, "%s from %s", other, name)
			}
		}
	}

	It("serves all Services on those ports, before and after kill -9 and a takeover, and nobody reaches those processes by a VIP; enforces source ranges", func() {
		all[0].spec = "  loadBalancerSourceRanges: [\"" + lab.PodClient4 + "/32\"]\n  type: LoadBalancer\nstatus: {loadBalancer: {ingress: [{ip: 203.0.113.10}]}}\n"
		all[0].write(dir)
		before := state(l.Node)
		u := startUsher(l.Node, dir, "--portal=address")
		Expect(u.Err.Contents()).To(ContainSubstring("VIPs are in usher's network namespace"))
		served()
		installed := state(l.Node)

		u.Kill().Wait(30 * time.Second)
		u = startUsher(l.Node, dir, "--portal=address")
		served()
		Expect(strings.Count(state(l.Node), "10.96.1.12")).To(Equal(strings.Count(installed, "10.96.1.12")))

		installed = state(l.Node)
		second := startUsher(l.Node, dir, "--portal=address", "--take-over")
		Eventually(u).WithTimeout(30 * time.Second).Should(gexec.Exit(0))
		served()
		Expect(state(l.Node)).To(Equal(installed))

		By("serving clients in a Service's source ranges and resetting others")
		pods := l.Pods.NewDialer(1)
		at := func(from string) error {
			c, err := pods.Dial(from, "203.0.113.10:80", 5*time.Second)
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = readName(c)
			return err
		}
		Expect(at(lab.PodClient4)).To(Succeed())
		Expect(at(lab.Pod(3).String())).To(reset)

		second.stop()
		Eventually(launch(l.Node, exec.Command(usherBinary, "cleanup"), "")).WithTimeout(time.Minute).Should(gexec.Exit(0))
		Expect(state(l.Node)).To(Equal(before))
	})

	It("starts without CAP_SYS_ADMIN, and logs which ports conflict with which processes", func() {
		cmd := exec.Command(usherBinary, "run", "--manifests", dir, "--log-format=text", "--portal=address")
		var u *gexec.Session
		l.Node.Do(func() (err error) { // on a thread that ends afterwards: only usher lacks the capability
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_ADMIN, 0, 0, 0); err != nil {
				return err
			}
			u, err = gexec.Start(cmd, GinkgoWriter, GinkgoWriter)
			return err
		})
		DeferCleanup(func() { u.Kill().Wait(30 * time.Second) })
		Eventually(u.Err).WithTimeout(time.Minute).Should(gbytes.Say("address already in use: .* listens on"))
		Eventually(u.Err).WithTimeout(time.Minute).Should(gbytes.Say(`VIPs are addresses of this node.*10\.96\.0\.10:80/tcp with \S+ \(process \d+\) on .*CAP_SYS_ADMIN is missing`))
		Eventually(u.Err).WithTimeout(time.Minute).Should(gbytes.Say("Serving"))
	})
})
