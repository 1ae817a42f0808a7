package cluster

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gexec"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	machinery "k8s.io/apimachinery/pkg/runtime"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/usherproxy/usher/test/cluster/control"
	"github.com/usherproxy/usher/test/lab"
)

// containers is containerd on a cluster's node, driven as a kubelet does. "On the node's network" means in the node's
// namespace. containerd has its own mount and PID namespaces, so that nothing of it remains, however the spec ends.
type containers struct {
	cluster *cluster
	session *gexec.Session
	dir     string
	client  cri.RuntimeServiceClient
}

const (
	pauseImage   = "localhost/pause:1"
	containerTag = "test" // of the image under test
)

// startContainers starts containerd with the image under test. The end of the spec stops it.
func (c *cluster) startContainers(archive string) *containers {
	GinkgoHelper()
	dir, err := os.MkdirTemp("", "cri-") // short, since socket paths have a length limit
	Expect(err).NotTo(HaveOccurred())
	k := &containers{cluster: c, dir: dir}
	config := fmt.Sprintf(`version = 2
root = "%[1]s/root"
state = "%[1]s/state"
[grpc]
  address = "%[1]s/socket"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "%[2]s"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native" # where the machine is a container itself, overlayfs may have no place
`, dir, pauseImage)
	Expect(os.WriteFile(filepath.Join(dir, "config.toml"), []byte(config), 0o644)).To(Succeed())
	k.session = startIn(c.Node, exec.Command("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "containerd", "--config", filepath.Join(dir, "config.toml"), "--log-level=warn"))
	DeferCleanup(func() {
		k.session.Kill().Wait(20 * time.Second)
		for _, pattern := range []string{"/sys/fs/cgroup/%s/*", "/sys/fs/cgroup/%s", "/sys/fs/cgroup/*/%s/*", "/sys/fs/cgroup/*/%s"} { // of cgroup v1 or v2
			groups, err := filepath.Glob(fmt.Sprintf(pattern, k.cgroup()))
			Expect(err).NotTo(HaveOccurred())
			for _, group := range groups { // killed processes leave it
				if info, err := os.Stat(group); err != nil || !info.IsDir() {
					continue
				}
				Eventually(func() error { return os.Remove(group) }).WithTimeout(30 * time.Second).Should(Succeed())
			}
		}
		Expect(os.RemoveAll(dir)).To(Succeed())
	})
	conn, err := grpc.NewClient("unix://"+dir+"/socket", grpc.WithTransportCredentials(insecure.NewCredentials()))
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(conn.Close)
	k.client = cri.NewRuntimeServiceClient(conn)
	Eventually(func() error {
		_, err := k.client.Version(context.Background(), &cri.VersionRequest{})
		return err
	}).WithTimeout(30 * time.Second).Should(Succeed())
	k.importImage(archive)
	k.importImage(pauseArchive())
	return k
}

// cgroup returns the parent cgroup of all containers.
func (k *containers) cgroup() string { return filepath.Base(k.dir) }

func (k *containers) importImage(archive string) {
	GinkgoHelper()
	out, err := exec.Command("ctr", "--address", k.dir+"/socket", "--namespace=k8s.io", "images", "import", "--snapshotter=native", archive).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", out)
}

// importDockerfile builds the Dockerfile's image, imports it, and returns its name.
func (k *containers) importDockerfile() string {
	GinkgoHelper()
	for _, program := range []string{"buildah", "debootstrap"} {
		if _, err := exec.LookPath(program); err != nil {
			Skip(program + " is not installed")
		}
	}
	const name = "localhost/usher:dockerfile"
	archive := filepath.Join(GinkgoT().TempDir(), "image.tar")
	out, err := exec.Command(filepath.Join(control.Root(), "test/dockerfile.sh"), name, archive).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", out)
	k.importImage(archive)
	return name
}

// pauseArchive makes an image archive, as docker save does, that contains only a program that waits.
func pauseArchive() string {
	GinkgoHelper()
	dir := GinkgoT().TempDir()
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "pause"), "./pause")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", out)
	program, err := os.ReadFile(filepath.Join(dir, "pause"))
	Expect(err).NotTo(HaveOccurred())
	pack := func(names []string, contents ...[]byte) []byte {
		var out bytes.Buffer
		archive := tar.NewWriter(&out)
		for i, name := range names {
			Expect(archive.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(contents[i]))})).To(Succeed())
			Expect(archive.Write(contents[i])).Error().NotTo(HaveOccurred())
		}
		Expect(archive.Close()).To(Succeed())
		return out.Bytes()
	}
	layer := pack([]string{"pause"}, program)
	config := fmt.Sprintf(`{"architecture": %q, "os": "linux", "config": {"Entrypoint": ["/pause"]}, "rootfs": {"type": "layers", "diff_ids": ["sha256:%x"]}}`, runtime.GOARCH, sha256.Sum256(layer))
	manifest := fmt.Sprintf(`[{"Config": "config.json", "RepoTags": [%q], "Layers": ["layer.tar"]}]`, pauseImage)
	file := filepath.Join(dir, "pause.tar")
	Expect(os.WriteFile(file, pack([]string{"config.json", "layer.tar", "manifest.json"}, []byte(config), layer, []byte(manifest)), 0o644)).To(Succeed())
	return file
}

// daemonSet returns the DaemonSet of deploy/kustomize.
func daemonSet() *appsv1.DaemonSet {
	GinkgoHelper()
	for _, object := range deployed() {
		if object.GetKind() == "DaemonSet" {
			set := &appsv1.DaemonSet{}
			Expect(machinery.DefaultUnstructuredConverter.FromUnstructured(object.Object, set)).To(Succeed())
			return set
		}
	}
	Fail("deploy/kustomize has no DaemonSet")
	return nil
}

// containerPod is a Pod of the DaemonSet with its single container.
type containerPod struct {
	on      *containers
	spec    corev1.PodSpec
	sandbox string
	id      string // of the container
	log     string // its file
}

// run starts a Pod of the DaemonSet as a kubelet does.
func (k *containers) run(name string, edit ...func(*corev1.Container)) *containerPod {
	GinkgoHelper()
	ctx := context.Background()
	p := &containerPod{on: k, spec: daemonSet().Spec.Template.Spec}
	Expect(p.spec.Containers).To(HaveLen(1))
	container := &p.spec.Containers[0]
	container.Image += ":" + containerTag
	for _, e := range edit {
		e(container)
	}
	namespaces := &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}
	if p.spec.HostNetwork {
		namespaces.Network = cri.NamespaceMode_NODE
	}
	sandbox := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Namespace: metav1.NamespaceSystem, Uid: name},
		LogDirectory: filepath.Join(k.dir, name),
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent: "/" + k.cgroup(),
			SecurityContext: &cri.LinuxSandboxSecurityContext{
				NamespaceOptions: namespaces,
				Seccomp:          &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault},
			},
		},
	}
	Expect(os.MkdirAll(sandbox.LogDirectory, 0o755)).To(Succeed())
	ran, err := k.client.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: sandbox})
	Expect(err).NotTo(HaveOccurred())
	p.sandbox = ran.PodSandboxId
	config := k.containerConfig(container, namespaces)
	p.log = filepath.Join(sandbox.LogDirectory, config.LogPath)
	created, err := k.client.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: p.sandbox, Config: config, SandboxConfig: sandbox})
	Expect(err).NotTo(HaveOccurred())
	p.id = created.ContainerId
	Expect(k.client.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: p.id})).Error().NotTo(HaveOccurred())
	return p
}

// containerConfig translates a container's specification for the runtime. As a kubelet does, it adds the
// ServiceAccount's token and the environment variables.
func (k *containers) containerConfig(container *corev1.Container, namespaces *cri.NamespaceOption) *cri.ContainerConfig {
	GinkgoHelper()
	env := k.environment(container)
	config := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: container.Name},
		Image:    &cri.ImageSpec{Image: container.Image},
		Command:  container.Command,
		LogPath:  container.Name + ".log",
		Mounts:   []*cri.Mount{{ContainerPath: "/var/run/secrets/kubernetes.io/serviceaccount", HostPath: k.token(), Readonly: true}},
	}
	for name, value := range env {
		config.Envs = append(config.Envs, &cri.KeyValue{Key: name, Value: []byte(value)})
	}
	for _, arg := range container.Args {
		config.Args = append(config.Args, os.Expand(strings.NewReplacer("$(", "${", ")", "}").Replace(arg), func(name string) string { return env[name] }))
	}
	s := container.SecurityContext
	security := &cri.LinuxContainerSecurityContext{
		NamespaceOptions: namespaces,
		Privileged:       *s.Privileged,
		RunAsUser:        &cri.Int64Value{Value: *s.RunAsUser},
		RunAsGroup:       &cri.Int64Value{Value: *s.RunAsGroup},
		ReadonlyRootfs:   *s.ReadOnlyRootFilesystem,
		NoNewPrivs:       !*s.AllowPrivilegeEscalation,
		Capabilities:     &cri.Capability{},
	}
	for _, c := range s.Capabilities.Add {
		security.Capabilities.AddCapabilities = append(security.Capabilities.AddCapabilities, string(c))
	}
	for _, c := range s.Capabilities.Drop {
		security.Capabilities.DropCapabilities = append(security.Capabilities.DropCapabilities, string(c))
	}
	if s.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault {
		security.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
	}
	config.Linux = &cri.LinuxContainerConfig{SecurityContext: security, Resources: &cri.LinuxContainerResources{
		CpuShares: container.Resources.Requests.Cpu().MilliValue() * 1024 / 1000,
	}}
	return config
}

// environment returns the container's variables, including those of the ConfigMap that it references.
func (k *containers) environment(container *corev1.Container) map[string]string {
	GinkgoHelper()
	env := map[string]string{}
	for _, from := range container.EnvFrom {
		values, err := plane.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(context.Background(), from.ConfigMapRef.Name, metav1.GetOptions{})
		Expect(err).NotTo(HaveOccurred())
		for name, value := range values.Data {
			env[name] = value
		}
	}
	for _, e := range container.Env {
		switch {
		case e.ValueFrom == nil:
			env[e.Name] = e.Value
		case e.ValueFrom.FieldRef != nil && e.ValueFrom.FieldRef.FieldPath == "spec.nodeName":
			env[e.Name] = here
		default:
			Fail("this kubelet does not know where to take " + e.Name + " from")
		}
	}
	return env
}

// token writes the files that a kubelet mounts for the ServiceAccount, and returns their folder.
func (k *containers) token() string {
	GinkgoHelper()
	dir := filepath.Join(k.dir, "serviceaccount")
	Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
	who := plane.ServiceAccount(context.Background(), roleNamespace, roleName)
	for name, content := range map[string][]byte{"token": []byte(who.Token), "ca.crt": plane.Config(control.Admin).CAData, "namespace": []byte(roleNamespace)} {
		Expect(os.WriteFile(filepath.Join(dir, name), content, 0o644)).To(Succeed())
	}
	return dir
}

// output returns all output of the container.
func (p *containerPod) output() string {
	text, _ := os.ReadFile(p.log) // the file is missing until the first output
	return string(text)
}

// probe probes the Pod as the kubelet does and returns the failure.
func (p *containerPod) probe(what *corev1.Probe) func() error {
	if what.Exec != nil {
		return func() error {
			answer, err := p.execSync(what.Exec.Command, int64(what.TimeoutSeconds))
			if err == nil && answer.ExitCode != 0 {
				err = fmt.Errorf("exit code %d: %s%s", answer.ExitCode, answer.Stdout, answer.Stderr)
			}
			return err
		}
	}
	get := getting(p.on.cluster.node, fmt.Sprintf("http://127.0.0.1:%d%s", what.HTTPGet.Port.IntVal, what.HTTPGet.Path))
	return func() error {
		answer, err := get()
		if err == nil && answer.Code != 200 {
			err = fmt.Errorf("HTTP status %d", answer.Code)
		}
		return err
	}
}

// ready waits until the Pod's readiness probe succeeds.
func (p *containerPod) ready() *containerPod {
	GinkgoHelper()
	Eventually(p.probe(p.spec.Containers[0].ReadinessProbe)).WithTimeout(2*time.Minute).Should(Succeed(), p.output)
	return p
}

// status returns the container's status from the runtime.
func (p *containerPod) status() *cri.ContainerStatus {
	GinkgoHelper()
	answer, err := p.on.client.ContainerStatus(context.Background(), &cri.ContainerStatusRequest{ContainerId: p.id})
	Expect(err).NotTo(HaveOccurred())
	return answer.Status
}

// exited waits until the container exits and expects exit code 0.
func (p *containerPod) exited() {
	GinkgoHelper()
	Eventually(func() cri.ContainerState { return p.status().State }).WithTimeout(40*time.Second).Should(Equal(cri.ContainerState_CONTAINER_EXITED), p.output)
	Expect(p.status().ExitCode).To(BeZero(), p.output())
}

// terminate terminates the Pod as a kubelet does: SIGTERM, and SIGKILL after the grace period.
func (p *containerPod) terminate() {
	GinkgoHelper()
	ctx := context.Background()
	Expect(p.on.client.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: p.id, Timeout: *p.spec.TerminationGracePeriodSeconds})).Error().NotTo(HaveOccurred())
	Expect(p.status().ExitCode).To(BeZero(), p.output())
	Expect(p.on.client.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.sandbox})).Error().NotTo(HaveOccurred())
	Expect(p.on.client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.sandbox})).Error().NotTo(HaveOccurred())
}

// execSync runs a command in the container, with a timeout in seconds.
func (p *containerPod) execSync(command []string, seconds int64) (*cri.ExecSyncResponse, error) {
	return p.on.client.ExecSync(context.Background(), &cri.ExecSyncRequest{ContainerId: p.id, Cmd: command, Timeout: seconds})
}

// exec runs a command in the container and returns its output.
func (p *containerPod) exec(args ...string) string {
	GinkgoHelper()
	answer, err := p.execSync(args, 20)
	Expect(err).NotTo(HaveOccurred())
	Expect(answer.ExitCode).To(BeZero(), "%s%s", answer.Stdout, answer.Stderr)
	return string(answer.Stdout)
}

// ushers returns the PIDs of the container's keeper and of the usher process that it started.
func (p *containerPod) ushers() (keeper, usher int) {
	GinkgoHelper()
	answer, err := p.on.client.ContainerStatus(context.Background(), &cri.ContainerStatusRequest{ContainerId: p.id, Verbose: true})
	Expect(err).NotTo(HaveOccurred())
	var info struct{ PID int }
	Expect(json.Unmarshal([]byte(answer.Info["info"]), &info)).To(Succeed())
	keeper = p.on.outside(info.PID)
	return keeper, lab.Child(keeper)
}

// outside returns the PID in this namespace of a process, from its PID in containerd's namespace.
func (k *containers) outside(pid int) int {
	GinkgoHelper()
	todo := lab.Children(k.session.Command.Process.Pid)
	for len(todo) > 0 {
		here := todo[0]
		todo = append(todo[1:], lab.Children(here)...)
		numbers := strings.Fields(processStatus(here, "NSpid"))
		if len(numbers) > 1 && numbers[1] == fmt.Sprint(pid) {
			return here
		}
	}
	Fail(fmt.Sprintf("there is no process %d beside containerd", pid))
	return 0
}

// processStatus returns a field of proc_pid_status(5).
func processStatus(pid int, field string) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // the process may have exited
	_, rest, _ := strings.Cut(string(text), "\n"+field+":")
	value, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(value)
}
