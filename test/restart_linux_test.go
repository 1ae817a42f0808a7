package test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"

	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/test/lab"
)

// These specs check usher's rules and routes after usher dies and after other programs change them.
var _ = Describe("the rules and routes of", func() {
	for _, portal := range []string{"iptables", "nftables", "address"} {
		Describe("the "+portal+" portal", func() { restartSpecs(portal) })
	}
})

func restartSpecs(portal string) {
	var (
		l   *lab.Lab
		pod *lab.Dialer
		dir string
	)
	BeforeEach(func() {
		missing("iptables")
		l = lab.New()
		pod = l.Pods.NewDialer(8)
		dir = manifestsDir()
	})
	services := func(count int, backends ...*backend) (list []service) {
		for i := range count {
			s := service{name: fmt.Sprintf("s%d", i), clusterIP: fmt.Sprintf("10.96.%d.%d", i/200, 1+i%200), port: 80}
			for _, b := range backends {
				s.endpoints = append(s.endpoints, b.addr)
			}
			s.write(dir)
			list = append(list, s)
		}
		return list
	}
	run := func() *usher {
		GinkgoHelper()
		return startUsher(l.Node, dir, "--portal="+portal, "--portal-check-interval=1s")
	}
	cleanup := func() {
		GinkgoHelper()
		s := launch(l.Node, exec.Command(usherBinary, "cleanup"), "")
		Eventually(s).WithTimeout(time.Minute).Should(gexec.Exit(0))
		Expect(string(s.Err.Contents())).NotTo(ContainSubstring("removed"), "removal is reported only once")
	}

	It("are correct after kill -9 and a restart with 100 Services, and removed by cleanup", func() {
		before := lab.State(l.Node)
		first, second := startBackend(l.Pods, lab.Pod(1), 8080), startBackend(l.Pods, lab.Pod(2), 8080)
		list := services(100, first)
		u := run()
		for _, s := range list {
			Expect(ask(pod, s.vip())).To(Equal(first.addr))
		}
		installed := lab.State(l.Node)
		Expect(installed).NotTo(Equal(before))
		u.Kill().Wait(30 * time.Second)
		Expect(lab.State(l.Node)).To(Equal(installed), "a killed process leaves its rules")
		unserved(pod, portal, list[0].vip())

		By("changing every Service and removing one while usher does not run")
		for i := range list {
			list[i].endpoints = []netip.AddrPort{second.addr}
			list[i].write(dir)
		}
		removed := list[99]
		removed.clusterIP = "10.97.0.1"
		removed.write(dir)
		u = run()
		for _, s := range list[:99] {
			Expect(ask(pod, s.vip())).To(Equal(second.addr))
		}
		Expect(ask(pod, removed.vip())).To(Equal(second.addr))
		after := lab.State(l.Node)
		Expect(after).NotTo(ContainSubstring(list[99].clusterIP), "unwanted rules are removed")
		Expect(strings.Count(after, "10.96.0.7")).To(Equal(strings.Count(installed, "10.96.0.7")), "no rule is duplicated")
		if portal == "iptables" {
			By("using the same local ports")
			Expect(rule(after, "10.96.0.7/32")).To(Equal(rule(installed, "10.96.0.7/32")))
		}

		By("cleaning up")
		u.stop()
		cleanup()
		Expect(lab.State(l.Node)).To(Equal(before))
	})

	It("are listed by 'usher get portals -A', and compared with wanted rules while usher runs", func() {
		list := services(3, startBackend(l.Pods, lab.Pod(1), 8080))
		before := time.Now().Truncate(time.Second)
		u := startUsher(l.Node, dir, "--portal="+portal, "--portal-check-interval=1m")
		portals := func(args ...string) *usher {
			GinkgoHelper()
			p := launch(l.Node, exec.Command(usherBinary, append([]string{"get", "portals", "-A"}, args...)...), "")
			Eventually(p).WithTimeout(time.Minute).Should(gexec.Exit(0))
			return p
		}
		row := func(state string, s service) string {
			return fmt.Sprintf(`(?m)^%s *%s +%s:80/TCP .* default/%s:main$`, state, portal, s.clusterIP, s.name)
		}
		for _, s := range list {
			Expect(string(portals().Out.Contents())).To(MatchRegexp(row("ok", s)))
		}
		var answer api.Portals
		Expect(json.Unmarshal([]byte(l.Node.Output("curl", "-s", "http://127.0.0.1:10249/api/v1/portals")), &answer)).To(Succeed())
		Expect(answer.Mode).To(Equal(portal))
		Expect(answer.LastApplied).To(And(BeTemporally(">=", before), BeTemporally("<=", time.Now())))
		Expect(answer.Rules).To(HaveLen(3))
		if portal != "address" {
			parts := 5 + 3 + 1
			if portal == "iptables" {
				parts++ // the rule that accepts redirected packets
			}
			Expect(answer.Parts).To(And(HaveLen(parts), HaveEach(HaveField("State", "ok"))))
			Expect(string(portals().Out.Contents())).To(MatchRegexp(`(?m)^STATE +FAMILY +OBJECT +DETAIL\n(?:.*\n)*ok +IPv4 +routing rule 115 +115: from all fwmark 0x1001/0x1001 lookup 117117$`))
		}

		By("listing rules while usher does not respond")
		alone := portals("--admin-address=127.0.0.1:1")
		Expect(alone.Err).To(gbytes.Say("Cannot determine which rules are wanted: cannot connect to usher at .*: connection refused"))
		Expect(string(alone.Out.Contents())).To(MatchRegexp(fmt.Sprintf(`(?m)^- +%s +%s\b`, portal, list[2].clusterIP)))

		_, said, _ := askUsher(l.Node, "get", "services", "--admin-address=127.0.0.1:1")
		Expect(said).To(HaveSuffix("An usher process is running here: it manages the portals\n"))

		u.Kill().Wait(30 * time.Second)
		Expect(portals("-o", "json").Out.Contents()).To(ContainSubstring(`"mode": "` + portal + `"`))
		_, said, code := askUsher(l.Node, "diagnose")
		Expect(code).To(Equal(1))
		Expect(said).To(MatchRegexp("A previous usher process left [1-9][0-9]* rules of its portal; until usher runs, clients of the VIPs are not served.\nThe next 'usher run' takes the rules over; 'usher cleanup' removes them"))
		cleanup()
		Expect(portals("-o", "json").Out.Contents()).To(MatchJSON(`{"total": 0, "items": []}`))
	})

	It("are restored after another program removes them, while open connections continue, and removed at once on Ctrl-C", func() {
		before := lab.State(l.Node)
		list := services(3, startBackend(l.Pods, lab.Pod(1), 8080))
		interval := "1m" // the kernel's change events come first
		if portal == "iptables" && !strings.Contains(l.Node.Output("iptables", "--version"), "nf_tables") {
			interval = "1s"
		}
		u := startUsher(l.Node, dir, "--portal="+portal, "--portal-check-interval="+interval)
		open, err := pod.Dial("", list[0].vip(), 10*time.Second)
		Expect(err).NotTo(HaveOccurred())
		Expect(readName(open)).Error().NotTo(HaveOccurred())
		switch portal {
		case "iptables":
			l.Node.Output("iptables", "-t", "nat", "-F")
		case "nftables":
			l.Node.Output("nft", "flush", "ruleset")
		default:
			l.Node.Output("ip", "route", "flush", "table", "local", "proto", "117")
		}
		Eventually(u.Err).WithTimeout(time.Minute).Should(gbytes.Say("Restored missing or changed rules"))
		Expect(ask(pod, list[1].vip())).Error().NotTo(HaveOccurred())
		Expect(open.Write([]byte("x"))).Error().NotTo(HaveOccurred())
		Expect(open.SetReadDeadline(time.Now().Add(30 * time.Second))).To(Succeed())
		Expect(open.Read(make([]byte, 1))).To(Equal(1))

		By("removing them at once on Ctrl-C")
		Expect(open.Close()).To(Succeed())
		Expect(lab.State(l.Node)).NotTo(Equal(before))
		u.Interrupt()
		Eventually(u).WithTimeout(30 * time.Second).Should(gexec.Exit(0))
		Expect(lab.State(l.Node)).To(Equal(before))
	})

	if portal != "nftables" { // the lock is the same for each
		return
	}
	It("are managed by one instance at a time", func() {
		services(1, startBackend(l.Pods, lab.Pod(1), 8080))
		u := run()
		other := launchUsher(l.Node, dir, "--portal="+portal)
		Eventually(other).WithTimeout(30 * time.Second).Should(gexec.Exit(75))
		Expect(other.Err).To(gbytes.Say(fmt.Sprintf("another usher process manages the portals .*process %d", u.Command.Process.Pid)))
		clean := launch(l.Node, exec.Command(usherBinary, "cleanup"), "")
		Eventually(clean).WithTimeout(30 * time.Second).Should(gexec.Exit(1))
		beside := startUsher(l.Node, dir, "--portal=none", "--take-over")
		Expect(string(beside.Err.Contents())).To(ContainSubstring("--take-over has no effect with --portal=none"))
	})
}

// rule returns the lines of an iptables-save output that contain an address.
func rule(saved, address string) (lines []string) {
	for line := range strings.Lines(saved) {
		if strings.Contains(line, address) {
			lines = append(lines, line)
		}
	}
	return lines
}

var _ = Describe("usher cleanup", func() {
	It("fails without CAP_NET_ADMIN instead of reporting that there is nothing to remove", func() {
		l := lab.New()
		clean := launch(l.Node, asNobody(usherForNobody(), "cleanup"), "")
		Eventually(clean).WithTimeout(time.Minute).Should(gexec.Exit(1))
		Expect(clean.Err).To(gbytes.Say("CAP_NET_ADMIN is missing"))
		Expect(clean.Out.Contents()).To(BeEmpty())
	})
})

var _ = Describe("without iptables, nft and ip", func() {
	for mode, chosen := range map[string]string{"auto": "nftables", "address": "address"} {
		It("--portal="+mode+" serves Services", func() {
			l := lab.New()
			dir := manifestsDir()
			web := service{name: "web", clusterIP: clusterIP, port: 80, endpoints: []netip.AddrPort{startBackend(l.Pods, lab.Pod(1), 8080).addr}}
			web.write(dir)
			// An empty PATH: no iptables, nft or ip.
			cmd := exec.Command(usherBinary, "run", "--manifests", dir, "--log-format=text", "--portal="+mode)
			cmd.Env = []string{"PATH=/nowhere"}
			u := launch(l.Node, cmd, dir)
			if mode == "auto" {
				Eventually(u.Err).WithTimeout(time.Minute).Should(gbytes.Say(`Portal skipped.*iptables`))
			}
			Eventually(u.Err).WithTimeout(time.Minute).Should(gbytes.Say("Serving.*portal=" + chosen))
			Expect(ask(l.Pods.NewDialer(1), web.vip())).To(Equal(web.endpoints[0]))
			Expect(ask(l.Node.NewDialer(1), web.vip())).To(Equal(web.endpoints[0]))
		})
	}
})
