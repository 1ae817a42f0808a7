package cluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/usherproxy/usher/test/cluster/control"
	"github.com/usherproxy/usher/test/lab"
)

// These specs run the images of `make image` and the Dockerfile under containerd and runc. They use the DaemonSet's own
// flags, security context, probes and role.
var _ = Describe("the image", Ordered, ContinueOnFailure, func() {
	var archive string
	BeforeAll(func() {
		for _, program := range []string{"containerd", "runc"} {
			if _, err := exec.LookPath(program); err != nil {
				Skip(program + " is not installed")
			}
		}
		archive = filepath.Join(GinkgoT().TempDir(), "image.tar")
		out, err := exec.Command("make", "-C", control.Root(), "image", "VERSION="+containerTag, "IMAGE="+archive).CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), "%s", out)

		ctx, maps := context.Background(), plane.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
		host, port, _ := strings.Cut(strings.TrimPrefix(plane.Server(), "https://"), ":")
		_, err = maps.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "usher-api-server"},
			Data:       map[string]string{"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port},
		}, metav1.CreateOptions{})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { Expect(maps.Delete(ctx, "usher-api-server", metav1.DeleteOptions{})).To(Succeed()) })
	})

	var (
		c    *cluster
		k    *containers
		vips []string // of both families
		pod  *kubernetesPod
	)
	BeforeEach(func() {
		c = newCluster()
		k = c.startContainers(archive)
		both := corev1.IPFamilyPolicyRequireDualStack
		svc := c.service("web", func(s *corev1.Service) { s.Spec.IPFamilyPolicy = &both })
		vips = []string{at(svc.Spec.ClusterIPs[0], 80), at(svc.Spec.ClusterIPs[1], 80)}
		pod = c.startPod("web", 1, here)
		Eventually(func() int { return len(c.slices("web")) }).WithTimeout(soon).Should(Equal(2))
	})
	with := func(flags ...string) func(*corev1.Container) {
		return func(container *corev1.Container) { container.Args = append(container.Args, flags...) }
	}
	instead := func(args ...string) func(*corev1.Container) {
		return func(container *corev1.Container) { container.Args = args }
	}
	served := func() {
		GinkgoHelper()
		for i, want := range []*server{pod.server, pod.six} {
			Eventually(answers(c.pod, vips[i])).WithTimeout(soon).Should(Equal(want.addr))
			Expect(ask(c.node, vips[i])).To(Equal(want.addr), "from the node")
		}
	}

	const dockerfile = ", from the Dockerfile"
	for _, portal := range []struct {
		name  string
		flags []string
		image string
	}{
		{"iptables", nil, ""}, // as deployed
		{"nftables", []string{"--portal=nftables"}, ""},
		{"address", []string{"--portal=address"}, ""},
		{"iptables", nil, dockerfile},
	} {
		It("serves both families with the portal "+portal.name+portal.image+", answers the probes, survives kill -9, and leaves no rules", func() {
			of := func(*corev1.Container) {}
			if portal.image == dockerfile {
				name := k.importDockerfile()
				of = func(container *corev1.Container) { container.Image = name }
			}
			before := lab.State(c.Node)
			p := k.run("usher", of, with(portal.flags...)).ready()
			served()
			Expect(get(c.pod, adminURL+"/metrics")).Error().To(HaveOccurred(), "the admin server is only for the node")
			Expect(p.exec("usher", "get", "portals", "-A")).To(MatchRegexp(`(?m)^ok +%s `, portal.name))
			for _, probe := range []*corev1.Probe{p.spec.Containers[0].ReadinessProbe, p.spec.Containers[0].LivenessProbe} {
				Eventually(p.probe(probe)).WithTimeout(soon).Should(Succeed())
			}

			By("having only the permissions in the specification")
			keeper, usher := p.ushers()
			for _, pid := range []int{keeper, usher} {
				Expect(processStatus(pid, "CapEff")).To(Equal("0000000000001400"), "NET_ADMIN and NET_BIND_SERVICE: capability.h")
				Expect(processStatus(pid, "CapBnd")).To(Equal("0000000000001400"))
				Expect(processStatus(pid, "NoNewPrivs")).To(Equal("1"))
				Expect(processStatus(pid, "Seccomp")).To(Equal("2"), "a filter")
				Expect(processStatus(pid, "Uid")).To(HavePrefix("0\t"))
			}

			By("transferring 32 MB in both directions, with splice")
			open, err := connect(c.pod, vips[0])
			Expect(err).NotTo(HaveOccurred())
			bulk := bytes.Repeat([]byte("0123456789abcdef"), 2<<20)
			go func() { _, _ = open.Write(bulk) }() // the reader sees errors
			Expect(open.SetReadDeadline(time.Now().Add(time.Minute))).To(Succeed())
			back := make([]byte, len(bulk))
			Expect(io.ReadFull(open, back)).Error().NotTo(HaveOccurred())
			Expect(bytes.Equal(back, bulk)).To(BeTrue())

			By("killing usher")
			Expect(syscall.Kill(usher, syscall.SIGKILL)).To(Succeed())
			l := startLoad(c.pod, vips[0], 100)
			Eventually(p.output).WithTimeout(soon).Should(ContainSubstring("usher exited unexpectedly"))
			p.ready()
			l.more(100)
			Expect(l.stop()).To(BeEmpty())
			served()
			Expect(p.status().State).To(Equal(cri.ContainerState_CONTAINER_RUNNING))
			for line := range strings.Lines(p.output()) {
				Expect(line).NotTo(MatchRegexp(`(?i)not permitted|permission denied|read-only file system|forbidden|panic:`))
			}

			By("terminating the Pod")
			p.terminate()
			cleanup := k.run("cleanup", of, instead("cleanup"))
			cleanup.exited()
			cleanup.terminate()
			Expect(lab.State(c.Node)).To(Equal(before))
		})
	}

	It("is replaced at 500 connections per second, as in a surge rollout, without a failure, and open connections continue", func() {
		old := k.run("old").ready()
		served()
		var open []*connection
		for i := range 20 {
			c, err := connect(c.pod, vips[i%2])
			Expect(err).NotTo(HaveOccurred())
			open = append(open, c)
		}
		l := startLoad(c.pod, vips[0], 250)
		six := startLoad(c.pod, vips[1], 250)
		l.more(500)
		young := k.run("young")
		young.ready() // the DaemonSet's controller waits only for this
		old.terminate()
		l.more(500)
		Expect(append(l.stop(), six.stop()...)).To(BeEmpty())
		for _, c := range open {
			Expect(c.works()).To(Succeed(), c.LocalAddr().String())
		}
		AddReportEntry("connections", fmt.Sprint(l.count()+six.count()))
		served() // not during the load, which may be too much for a busy machine
		young.terminate()
	})

	It("runs the demo", func() {
		p := k.run("demo", instead("demo", "--once"), func(container *corev1.Container) {
			writable := false // the demo writes its manifests to a folder
			container.SecurityContext.ReadOnlyRootFilesystem = &writable
		})
		p.exited()
		p.terminate()
	})
})

// Only root gets capabilities.
var _ = Describe("the command of docs/kubernetes.md that removes the rules of a removed instance", func() {
	It("starts the image as root, although its user is not root", func() {
		page, err := os.ReadFile(filepath.Join(control.Root(), "docs", "kubernetes.md"))
		Expect(err).NotTo(HaveOccurred())
		command := regexp.MustCompile(`(?m)^kubectl debug node/NODE (?:.*\\\n)*.* usher cleanup$`).FindString(string(page))
		Expect(command).NotTo(BeEmpty())
		shell := exec.Command("bash", "-c", strings.NewReplacer("NODE", here, "REGISTRY", "registry.invalid", "VERSION", containerTag).Replace(command))
		shell.Env = append(os.Environ(), "KUBECONFIG="+plane.Kubeconfig(control.Admin, plane.Server()), "PATH="+filepath.Dir(binaries.Kubectl)+":"+os.Getenv("PATH"))
		session := startIn(controlSpace, shell)
		ctx, pods := context.Background(), plane.Client.CoreV1().Pods(metav1.NamespaceDefault)
		debugger := func() *corev1.Pod {
			list, err := pods.List(ctx, metav1.ListOptions{})
			Expect(err).NotTo(HaveOccurred())
			for _, p := range list.Items {
				if strings.HasPrefix(p.Name, "node-debugger-"+here) {
					return &p
				}
			}
			return nil
		}
		Eventually(debugger).WithTimeout(30 * time.Second).ShouldNot(BeNil())
		p := debugger()
		session.Kill().Wait(30 * time.Second) // otherwise it waits for the Pod
		Expect(pods.Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})).To(Succeed())
		Expect(p.Spec.HostNetwork).To(BeTrue())
		container := p.Spec.Containers[0]
		Expect(container.Command).To(Equal([]string{"usher", "cleanup"}))
		Expect(*container.SecurityContext.Privileged).To(BeTrue())
		Expect(*container.SecurityContext.RunAsUser).To(BeZero())
	})
})
