package control

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Binaries are the paths of the programs of Kubernetes that tests run, and of etcd.
type Binaries struct {
	Etcd, APIServer, ControllerManager, KubeProxy, Kubectl string
}

// Missing returns the name of a program that this machine lacks for a control plane and a lab, or "".
func Missing() string {
	for _, need := range []struct{ program, from string }{
		{"etcd", "etcd-server"}, {"iptables", "iptables"}, {"ip", "iproute2"}, {"go", "Go"},
	} {
		if _, err := exec.LookPath(need.program); err != nil {
			return fmt.Sprintf("%s is not installed (Debian's package: %s)", need.program, need.from)
		}
	}
	return ""
}

// Build returns the programs. It first builds the missing ones, which takes some minutes on 2 cores, and writes progress
// to log. If two processes call it at once, one builds and the other waits.
func Build(log io.Writer) (Binaries, error) {
	etcd, err := exec.LookPath("etcd")
	if err != nil {
		return Binaries{}, fmt.Errorf("etcd is not installed (Debian's package: etcd-server): %w", err)
	}
	dir, err := ensure(log, "kube-apiserver", "kube-controller-manager", "kube-proxy", "kubectl")
	path := func(name string) string { return filepath.Join(dir, name) }
	return Binaries{etcd, path("kube-apiserver"), path("kube-controller-manager"), path("kube-proxy"), path("kubectl")}, err
}

// ensure builds the missing ones of these programs of Kubernetes, and returns their folder.
func ensure(log io.Writer, programs ...string) (dir string, err error) {
	version, err := output("go", "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes")
	if err != nil {
		return "", err
	}
	dir = filepath.Join(Root(), ".cache", "kubernetes-"+version)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(filepath.Join(dir, ".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	missing := slices.DeleteFunc(programs, func(program string) bool { return exists(filepath.Join(dir, program)) })
	if len(missing) == 0 {
		return dir, nil
	}
	fmt.Fprintf(log, "building Kubernetes %s into %s: some minutes, once\n", version, dir)
	return dir, build(dir, version, missing, log)
}

// build builds programs in a temporary folder and then moves them into dir, so that dir never has a partial program.
func build(dir, version string, programs []string, log io.Writer) error {
	aside, err := os.MkdirTemp(dir, "build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(aside)
	stamp := "-s -w -X k8s.io/component-base/version.gitVersion=" + version
	cmd := exec.Command("go", "build", "-ldflags", stamp, "-o", aside)
	for _, program := range programs {
		cmd.Args = append(cmd.Args, "k8s.io/kubernetes/cmd/"+program)
	}
	cmd.Dir, cmd.Stdout, cmd.Stderr = module(), log, log
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("building Kubernetes %s: %w", version, err)
	}
	for _, name := range programs {
		if err := os.Rename(filepath.Join(aside, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// lock waits for the lock file at path and locks it.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// output runs a command in the folder of this module.
func output(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stderr = module(), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// module returns the folder of this module. This process was started in it or in one that needs it.
var module = sync.OnceValue(func() string {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/usherproxy/usher/test/cluster").Output()
	if err != nil {
		panic(fmt.Errorf("go list -m: %w", err))
	}
	return strings.TrimSpace(string(out))
})

// Root is the top folder of the repository.
func Root() string { return filepath.Dir(filepath.Dir(module())) }
