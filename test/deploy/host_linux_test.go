package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// command runs a command that must succeed and returns its output. If the command is not installed, it skips the spec.
func command(stdin, name string, args ...string) string {
	GinkgoHelper()
	if _, err := exec.LookPath(name); err != nil {
		Skip(name + " is not installed")
	}
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s %s: %s", name, args, out)
	return string(out)
}

var _ = Describe("the systemd unit", func() {
	var unit string
	BeforeEach(func() {
		text, err := os.ReadFile(filepath.Join(deploy, "systemd", "usher.service"))
		Expect(err).NotTo(HaveOccurred())
		unit = string(text)
	})
	setting := func(name string) string {
		GinkgoHelper()
		m := regexp.MustCompile(`(?m)^`+name+`=(.*)$`).FindAllStringSubmatch(unit, -1)
		Expect(m).To(HaveLen(1), name)
		return m[0][1]
	}
	// here returns the unit with a program that exists on this machine.
	here := func() string {
		GinkgoHelper()
		file := filepath.Join(GinkgoT().TempDir(), "usher.service")
		Expect(os.WriteFile(file, []byte(strings.ReplaceAll(unit, "/usr/local/bin/usher", "/bin/true")), 0o644)).To(Succeed())
		return file
	}

	It("passes systemd-analyze verify without warnings", func() {
		Expect(command("", "systemd-analyze", "verify", "--man=no", here())).To(BeEmpty())
	})

	It("has a low exposure score", func() {
		// 0 is the best score, 10 the worst. The remaining points are for root, the network and the two capabilities.
		command("", "systemd-analyze", "security", "--offline=true", "--threshold=30", here())
	})

	It("allows two capabilities and no new privileges", func() {
		Expect(strings.Fields(setting("CapabilityBoundingSet"))).To(ConsistOf("CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE"))
		Expect(setting("NoNewPrivileges")).To(Equal("yes"))
		Expect(setting("ProtectSystem")).To(Equal("strict"))
		Expect(unit).NotTo(ContainSubstring("\nAmbientCapabilities="))
		Expect(unit).NotTo(ContainSubstring("\nReadWritePaths="))
	})

	It("waits for the drain timeout, and keeps the rules for the next instance", func() {
		stop, err := time.ParseDuration(setting("TimeoutStopSec") + "s")
		Expect(err).NotTo(HaveOccurred())
		Expect(stop).To(BeNumerically(">=", drainTimeout()+5*time.Second))
		Expect(setting("KillMode")).To(Equal("mixed"))
		Expect(unit).NotTo(ContainSubstring("\nExecStopPost="))
		Expect(unit).NotTo(ContainSubstring("\nKillSignal=")) // SIGTERM
	})

	It("lets the keeper notify systemd, and stores its sockets for a restart", func() {
		Expect(setting("ExecStart")).To(ContainSubstring(" run --keeper "))
		Expect(setting("Type")).To(Equal("notify"))
		Expect(setting("NotifyAccess")).To(Equal("main"))
		Expect(setting("ExecReload")).To(Equal("/bin/kill -HUP $MAINPID"))
		Expect(strconv.Atoi(setting("FileDescriptorStoreMax"))).To(BeNumerically(">", 10000))
		Expect(strconv.Atoi(setting("WatchdogSec"))).To(BeNumerically(">=", 30))
		Expect(setting("OOMPolicy")).To(Equal("continue"))
	})

	It("passes only flags that usher has", func() {
		for _, flag := range regexp.MustCompile(`USHER_FLAGS=(.*)`).FindAllStringSubmatch(unit, -1) {
			for _, f := range strings.Fields(strings.Trim(flag[1], `"`)) {
				expectFlag(f)
			}
		}
	})
})

// These specs check the statements of deploy/kustomize about capabilities, files and iptables.
var _ = Describe("the two capabilities", func() {
	BeforeEach(func() {
		if os.Geteuid() != 0 {
			Skip("a read-only /run needs root")
		}
	})
	const asInPod = `mount -t tmpfs -o ro none /run && exec setpriv --bounding-set=-all,+net_admin,+net_bind_service --inh-caps=-all --no-new-privs `
	const rule = "*nat\n:USHER-TEST - [0:0]\n-A PREROUTING -p tcp --dport 80 -j REDIRECT --to-ports 8080\nCOMMIT\n"

	It("are enough for the nft variant of iptables, which needs no lock file", func() {
		command(rule, "unshare", "-nm", "sh", "-c", asInPod+"iptables-nft-restore -w 5 --noflush")
	})

	It("are not enough for the legacy variant, which opens a raw socket", func() {
		if _, err := exec.LookPath("iptables-legacy-save"); err != nil {
			Skip("iptables-legacy is not installed")
		}
		out := command("", "unshare", "-nm", "sh", "-c", "("+asInPod+"iptables-legacy-save -t nat) 2>&1 || true")
		Expect(out).To(ContainSubstring("Permission denied"))
	})
})
