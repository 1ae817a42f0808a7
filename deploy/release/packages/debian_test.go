package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// suite and programs define the small Debian system that the packages are installed in. It is made once and kept; no
// test changes it.
const (
	suite    = "bookworm"
	programs = "systemd,man-db,bash-completion,zsh,fish,iptables"
)

// inside prepares a script's run in that Debian system: in dedicated namespaces, on a copy that is discarded.
const inside = `
mount -t tmpfs tmpfs "$TOP"
mkdir "$TOP/upper" "$TOP/work" "$TOP/root"
mount -t overlay overlay -o "lowerdir=$DEBIAN,upperdir=$TOP/upper,workdir=$TOP/work" "$TOP/root"
mount -t proc proc "$TOP/root/proc"
mount --rbind /dev "$TOP/root/dev"
ip link set lo up
cp "$DIST"/*_` + runtime.GOARCH + `.deb "$TOP/root/usher.deb"
`

// debian returns the folder of the small Debian system, and makes the system if necessary.
func debian() string {
	GinkgoHelper()
	if os.Geteuid() != 0 {
		Skip("requires root to create a Debian system")
	}
	if _, err := exec.LookPath("debootstrap"); err != nil {
		Skip("debootstrap is not installed")
	}
	cache, err := filepath.Abs("../../../.cache")
	Expect(err).NotTo(HaveOccurred())
	dir := filepath.Join(cache, "debian-"+suite+"-"+runtime.GOARCH+"-"+strings.ReplaceAll(programs, ",", "-"))
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	Expect(os.MkdirAll(cache, 0o755)).To(Succeed())
	work, err := os.MkdirTemp(cache, "debian-")
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(os.RemoveAll, work)
	root := filepath.Join(work, "root")
	run(".", "unshare", "--mount", "--pid", "--fork", "--kill-child", "debootstrap", "--variant=minbase", "--include="+programs, suite, root)
	run(".", "sh", "-c", `rm -rf "$0"/var/cache/apt/archives/*.deb "$0"/var/lib/apt/lists/*`, root)
	Expect(os.Rename(root, dir)).To(Succeed())
	return dir
}

// outside runs inside and then a script of sh on this system, in dedicated namespaces. $R is the root of the small
// Debian system.
func outside(script string) string {
	GinkgoHelper()
	root := debian()
	cmd := exec.Command("unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "sh", "-eu", "-c", inside+"R=$TOP/root\n"+script)
	cmd.Env = append(os.Environ(), "DEBIAN="+root, "DIST="+made, "TOP="+GinkgoT().TempDir(), "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive")
	out, err := cmd.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", out)
	return string(out)
}

// within runs a script of bash in the small Debian system.
func within(script string) string {
	GinkgoHelper()
	return outside("chroot $R bash -euc " + quoted(script))
}

func quoted(script string) string { return "'" + strings.ReplaceAll(script, "'", `'\''`) + "'" }

const install = "apt-get install -y -q ./usher.deb >/tmp/install.log 2>&1 || { cat /tmp/install.log; exit 1; }\n"

var _ = Describe("the .deb", func() {
	It("can be installed, and usher works", func() {
		Expect(strings.Fields(within(install + "usher version"))[:3]).To(HaveExactElements("usher", version, commit[:12]))
		out := within(install + "usher demo --once")
		Expect(out).To(ContainSubstring("10.96.0.10"))
		fmt.Fprintln(GinkgoWriter, out)
	})

	It("leaves nothing when it is purged, and only its configuration when it is removed", func() {
		// The list excludes the databases of dpkg, apt and man.
		const list = `find / -xdev \( -path /proc -o -path /dev -o -path /tmp -o -path /var/lib/dpkg -o -path /var/log -o -path /var/cache -o -path /var/lib/apt \) -prune -o -printf "%p %y %m %u %l\n" | sort`
		out := within(list + " >/tmp/before\n" + install + list + ` >/tmp/installed
			echo '#mine' >>/etc/usher/usher.env
			systemctl enable -q usher
			test -L /etc/systemd/system/multi-user.target.wants/usher.service
			dpkg --remove usher >/dev/null
			` + list + ` >/tmp/removed
			comm -13 /tmp/before /tmp/removed
			grep -q '#mine' /etc/usher/usher.env
			echo purged:
			dpkg --purge usher >/dev/null
			` + list + ` >/tmp/purged
			diff /tmp/before /tmp/purged && echo the same`)
		Expect(out).To(Equal("/etc/usher d 755 root \n/etc/usher/usher.env f 644 root \npurged:\nthe same\n"))
	})

	It("keeps a changed configuration file when it is installed again", func() {
		Expect(within(install + `
			echo USHER_FLAGS=--portal=none >/etc/usher/usher.env
			dpkg --force-confdef -i usher.deb >/dev/null
			cat /etc/usher/usher.env`)).To(Equal("USHER_FLAGS=--portal=none\n"))
	})

	It("has a valid systemd unit with a low exposure level", func() {
		Expect(within(install + "systemd-analyze verify --man=yes usher.service")).To(BeEmpty())
		out := within(install + "systemd-analyze security --offline=true --no-pager usher.service")
		score := regexp.MustCompile(`Overall exposure level for usher.service: ([0-9.]+)`).FindStringSubmatch(out)
		Expect(score).NotTo(BeNil(), out)
		Expect(strconv.ParseFloat(score[1], 64)).To(BeNumerically("<=", 2.5), out)
		Expect(read(sources[0], "docs", "running.md")).To(ContainSubstring("rates it " + score[1] + " of 10"))
	})

	It("has manual pages without warnings", func() {
		pages, err := filepath.Glob(filepath.Join(unpacked(runtime.GOARCH), "man", "*.1"))
		Expect(err).NotTo(HaveOccurred())
		out := within(install + `
			for page in /usr/share/man/man1/*usher*.1.gz; do
				man --warnings -E UTF-8 -l -Tutf8 -Z $page 2>&1 >/dev/null
				echo ${page##*/}
			done
			man usher-run | grep -c -e --take-over`)
		var want []string
		for _, page := range pages {
			want = append(want, filepath.Base(page)+".gz")
		}
		lines := strings.Split(strings.TrimSpace(out), "\n")
		Expect(lines[:len(lines)-1]).To(ConsistOf(want))
		Expect(lines[len(lines)-1]).NotTo(Equal("0"))
	})

	It("has completions for bash, zsh and fish", func() {
		Expect(strings.Fields(within(install + `
			set +eu
			. /usr/share/bash-completion/bash_completion
			_completion_loader usher
			COMP_WORDS=(usher get s) COMP_CWORD=2 COMP_LINE="usher get s" COMP_POINT=11
			$(complete -p usher | sed "s/.* -F \([^ ]*\) .*/\1/") usher s get
			echo "${COMPREPLY[0]}"`))).To(ContainElement("services"))
		Expect(within(install + `fish -c 'complete -C "usher get s"'`)).To(ContainSubstring("services"))
		Expect(within(install + `zsh -fc 'autoload -U compinit; compinit -u; echo $_comps[usher]; autoload +X _usher && whence -w _usher'`)).To(
			Equal("_usher\n_usher: function\n"))
	})

	It("has no errors reported by lintian", func() {
		if _, err := exec.LookPath("lintian"); err != nil {
			Skip("lintian is not installed")
		}
		for _, arch := range []string{"amd64", "arm64"} {
			run(made, "lintian", "--allow-root", "--fail-on", "error", "usher_9.8.7-1_"+arch+".deb")
		}
	})
})

// boot starts the small Debian system: its systemd is the first process in dedicated namespaces and in a dedicated
// control group, as in a container. The kernel's settings are read-only there.
const boot = inside + `
cd "$TOP/root"
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
umount -l dev
mount -t tmpfs -o mode=755 tmpfs dev
for node in null:3 zero:5 full:7 random:8 urandom:9; do
	mknod -m 666 dev/${node%:*} c 1 ${node#*:}
done
ln -s /proc/self/fd dev/fd
mkdir dev/shm dev/pts dev/mqueue old
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
pivot_root . old
umount -l /old
exec env -i container=lxc PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd
`

// booted starts a system, and returns a function that runs a script of bash in it.
func booted() func(script string) string {
	GinkgoHelper()
	root := debian()
	point := regexp.MustCompile(`(?m)^\S+ (\S+) cgroup2 `).FindStringSubmatch(read("/proc/self/mounts"))
	if point == nil {
		Skip("cgroup2 is not mounted")
	}
	group, err := os.MkdirTemp(point[1], "usher-packages-")
	if err != nil {
		Skip("cannot create a control group: " + err.Error())
	}
	DeferCleanup(func() {
		Eventually(func() error {
			return exec.Command("find", group, "-depth", "-type", "d", "-exec", "rmdir", "{}", "+").Run()
		}).WithTimeout(30 * time.Second).Should(Succeed())
	})
	cmd := exec.Command("sh", "-euc", `echo 0 >"$0/cgroup.procs"
		exec unshare --mount --net --pid --ipc --uts --cgroup --fork --kill-child sh -euc "$1"`, group, boot)
	cmd.Env = append(os.Environ(), "DEBIAN="+root, "DIST="+made, "TOP="+GinkgoT().TempDir())
	cmd.Stdout, cmd.Stderr = GinkgoWriter, GinkgoWriter
	Expect(cmd.Start()).To(Succeed())
	DeferCleanup(func() {
		Expect(cmd.Process.Kill()).To(Succeed())
		_ = cmd.Wait() // reports that it was killed
	})
	var first string
	Eventually(func() string {
		children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid)) // empty until there are children
		first = strings.TrimSpace(string(children))
		name, _ := os.ReadFile(filepath.Join("/proc", first, "comm"))
		return string(name)
	}).WithTimeout(time.Minute).Should(Equal("systemd\n"))
	return func(script string) string {
		GinkgoHelper()
		return run(".", "timeout", "120", "nsenter", "-t", first, "--all", "--root", "--wd", "bash", "-euc", script)
	}
}

var _ = Describe("the .deb, under systemd", func() {
	It("is upgraded without a gap, and removes its rules when it is purged", func() {
		in := booted()
		Expect(in(`# A unit of Debian's may fail here, which is "degraded".
			until systemctl is-system-running 2>/dev/null | grep -q 'running\|degraded'; do sleep 0.1; done
			export DEBIAN_FRONTEND=noninteractive
			` + install + `
			systemctl is-enabled usher || true
			systemctl is-active usher || true`)).To(Equal("disabled\ninactive\n"))
		Expect(in(`cat >/etc/usher/manifests/web.yaml <<-end
				{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}}
				---
				{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web, labels: {kubernetes.io/service-name: web}},
				  addressType: IPv4, ports: [{port: 8080}], endpoints: [{addresses: [127.0.0.1]}]}
			end
			perl -MIO::Socket::INET -e '
				$l = IO::Socket::INET->new(LocalAddr => "127.0.0.1:8080", Listen => 128);
				while ($c = $l->accept) { print $c "hello\n"; close $c }' >/dev/null 2>&1 &
			server=$!
			systemctl enable -q --now usher
			ask() { local line; exec 3<>/dev/tcp/10.96.0.10/80 && read -r line <&3 && exec 3>&- && [ "$line" = hello ]; }
			until ask 2>/dev/null; do sleep 0.1; done

			until [ -e /tmp/enough ]; do ask || echo failed; sleep 0.005; done >/tmp/asked 2>&1 &
			asking=$!
			dpkg -i usher.deb >/tmp/upgrade.log 2>&1
			main=$(systemctl show -P MainPID usher)
			others() { grep -vx $main /sys/fs/cgroup/system.slice/usher.service/cgroup.procs; } # than the keeper
			until [ "$(for p in $(others); do readlink /proc/$p/exe; done)" = /usr/bin/usher ]; do sleep 0.1; done
			ask
			until systemctl is-active -q usher; do sleep 0.1; done
			touch /tmp/enough
			wait $asking
			[ $main = $(systemctl show -P MainPID usher) ]
			iptables-save | grep -c USHER >/dev/null
			kill $server
			cat /tmp/asked`)).To(BeEmpty())
		Expect(in(`: one that waits for its API server is replaced, too
			programs() { for p in $(cat /sys/fs/cgroup/system.slice/usher.service/cgroup.procs 2>/dev/null); do readlink /proc/$p/exe; done | sort -u; }
			systemctl stop usher
			echo '{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c}}], clusters: [{name: c, cluster: {server: "http://127.0.0.1:9"}}]}' >/etc/usher/kubeconfig
			echo "USHER_FLAGS=--kubeconfig=/etc/usher/kubeconfig --node-name=here" >/etc/usher/usher.env
			systemctl start --no-block usher
			until [ "$(programs)" = /usr/bin/usher ]; do sleep 0.1; done
			systemctl is-active usher || true
			dpkg --force-confdef -i usher.deb >/tmp/upgrade.log 2>&1
			until [ "$(programs)" = /usr/bin/usher ]; do sleep 0.1; done
			rm /etc/usher/usher.env /etc/usher/kubeconfig
			systemctl restart usher`)).To(Equal("activating\n"))
		Expect(in(`dpkg --purge usher >/tmp/purge.log 2>&1
			{ iptables-save; ip6tables-save; } | grep -i usher || true
			systemctl show -P LoadState usher.service
			ls /etc/systemd/system/multi-user.target.wants | grep usher || true
			ls /etc/usher/manifests`)).To(Equal("not-found\nweb.yaml\n"))
	})
})

var _ = Describe("the archive", func() {
	DescribeTable("has a program that works in a root file system without other files", func(prepare, ready string) {
		if os.Geteuid() != 0 {
			Skip("chroot requires root")
		}
		dir, root := unpacked(runtime.GOARCH), GinkgoT().TempDir()
		out := run(".", "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", `
			ip link set lo up
			cp "$0/usher" "$1"
			`+prepare+`
			exec chroot "$1" /usher demo --once`, dir, root)
		Expect(out).To(ContainSubstring(ready))
		Expect(out).To(ContainSubstring("requests had the expected outcome"))
		Expect(filesIn(root)).To(HaveExactElements("usher"))
	},
		Entry("and without /proc", "", `The portal is "none"`),
		Entry("but with /proc, as in containers", `mkdir "$1/proc"; mount -t proc proc "$1/proc"`, "10.96.0.10:80"),
	)
})

var _ = Describe("the .rpm", func() {
	var rpm string
	BeforeEach(func() {
		if _, err := exec.LookPath("rpm"); err != nil {
			Skip("rpm is not installed")
		}
		rpm = filepath.Join(made, "usher-9.8.7-1."+map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]+".rpm")
	})

	It("has valid digests, metadata and files", func() {
		Expect(run(".", "rpm", "-K", rpm)).To(ContainSubstring("digests OK"))
		Expect(run(".", "rpm", "-qp", "--qf", "%{name} %{version} %{license} %{buildhost} %{buildtime}", rpm)).To(Equal("usher 9.8.7 Apache-2.0 localhost 1767323045"))
		Expect(run(".", "rpm", "-qpc", rpm)).To(Equal("/etc/usher/usher.env\n"))
		Expect(strings.Fields(run(".", "rpm", "-qpl", rpm))).To(ContainElements("/usr/bin/usher", "/usr/bin/kubectl-usher", "/usr/lib/systemd/system/usher.service",
			"/etc/usher", "/etc/usher/manifests", "/etc/usher/usher.env", "/usr/share/man/man1/usher-run.1.gz", "/usr/share/licenses/usher/LICENSE",
			"/usr/share/bash-completion/completions/usher", "/usr/share/zsh/site-functions/_usher", "/usr/share/fish/vendor_completions.d/usher.fish"))
	})

	It("can be installed, works, and leaves nothing when it is erased", func() {
		out := outside(`
			cp ` + quoted(rpm) + ` $R/usher.rpm
			mkdir -p $R/usr/share/zsh/site-functions $R/usr/share/licenses # where there is rpm, others have them
			list() { (cd $R && find etc usr lib* opt srv -xdev | sort); }
			list >$TOP/before
			rpm --root $R --nodeps -i $R/usher.rpm 2>/dev/null # Debian's tells to use alien
			chroot $R usher version
			chroot $R systemctl enable -q usher
			test -L $R/etc/systemd/system/multi-user.target.wants/usher.service
			rpm --root $R -e usher 2>/dev/null
			list >$TOP/after
			diff $TOP/before $TOP/after && echo the same`)
		Expect(out).To(MatchRegexp(`^usher v9\.8\.7 .*\nthe same\n$`))
	})
})
