package test

import (
	"os"
	"os/exec"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("test/install.sh", func() {
	It("removes no package, skips installed programs, and continues without unavailable packages", func() {
		if os.Geteuid() != 0 {
			Skip("only root installs packages")
		}
		dir := GinkgoT().TempDir()
		for name, script := range map[string]string{
			"dpkg-query": "exit 1",
			"runc":       "",
			"systemctl":  "",
			"apt-get":    `echo "$*" >>"$0.log"; case "$*" in update*|*refused*) exit 100 ;; esac`,
		} {
			Expect(os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755)).To(Succeed())
		}
		// Files that it adds to /usr/sbin disappear with the mount namespace.
		cmd := exec.Command("unshare", "--mount", "sh", "-euc", `mount -t tmpfs tmpfs /usr/sbin; PATH=$0:/usr/bin:/bin; exec sh "$@"`,
			dir, filepath.Join(root(), "test", "install.sh"), "usher-a", "runc", "usher-refused")
		out, err := cmd.CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), "%s", out)
		Expect(string(out)).To(HaveSuffix("note: not installed: usher-refused\n"))
		const install = "-o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends --no-remove "
		Expect(os.ReadFile(filepath.Join(dir, "apt-get.log"))).To(BeEquivalentTo(
			"update -qq\n" + install + "usher-a usher-refused\n" + install + "usher-a\n" + install + "usher-refused\n"))
	})
})
