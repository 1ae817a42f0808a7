package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/test/cluster/control"
	"github.com/usherproxy/usher/test/lab"
)

// These flags set the size of the spec. With the defaults it takes seconds; docs/sizing.md has measurements of larger
// sizes.
var (
	manyNodes    = flag.Int("many-nodes", 3, "nodes of the spec \"many nodes\"; with more than 3 the API server is started again, too")
	manyServices = flag.Int("many-services", 20, "Services of the spec \"many nodes\", of ten endpoints each")
	manyPods     = flag.Int("many-pods", 50, "Pods that are replaced")
	manyLike     = flag.String("many-like", "", "measure only usher, or only kube-proxy")
)

// withFairness holds the API server's own defaults for concurrent requests.
var withFairness = []string{"--max-requests-inflight=400", "--max-mutating-requests-inflight=200", "--enable-priority-and-fairness=true"}

var _ = Describe("many nodes", func() {
	It("receive at most 10% more data from the API server with usher than with kube-proxy", func() {
		c := newCluster()
		full := *manyNodes > 3
		if full {
			DeferCleanup(func() {
				plane.KillAPIServer()
				plane.StartAPIServer()
				restartControllers()
			})
			plane.StopControllers() // the test writes their objects
			plane.KillAPIServer()
			plane.StartAPIServer(withFairness...)
		}
		each(*manyServices, func(i int) error {
			name := fmt.Sprintf("many-%d", i)
			if _, err := c.tryService(name, noSelector); err != nil {
				return err
			}
			return c.tryWrite(c.manySlice(i, 0))
		})
		for n := range *manyNodes {
			createNode(fmt.Sprintf("many-%d", n))
			DeferCleanup(func() {
				Expect(c.api.CoreV1().Nodes().Delete(context.Background(), fmt.Sprintf("many-%d", n), metav1.DeleteOptions{})).To(Succeed())
			})
		}
		generation := 0
		of := map[string][]figures{}
		for _, like := range []string{"usher", "kube-proxy"} {
			if *manyLike != "" && *manyLike != like {
				continue
			}
			w := watch(like, *manyNodes)
			of[like] = append(of[like], w.measure("first list", func() {
				w.begin()
				Eventually(func() int64 { return w.report().Synced }).WithTimeout(2 * time.Minute).Should(BeEquivalentTo(*manyNodes))
			}))
			generation++
			of[like] = append(of[like], w.measure("rolling update", func() { c.roll(generation) }))
			if full {
				w.again()
			}
			w.end()
		}
		if *manyLike != "" {
			return
		}
		for i, ours := range of["usher"] {
			theirs := of["kube-proxy"][i]
			Expect(float64(ours.received)).To(BeNumerically("<", 1.1*float64(theirs.received)), ours.what)
		}
	})
})

// manySlice returns the slice of Service number i, with ten endpoints on ten nodes. The generation is part of the
// Pods' names.
func (c *cluster) manySlice(i, generation int) *discoveryv1.EndpointSlice {
	name := fmt.Sprintf("many-%d", i)
	var all []discoveryv1.Endpoint
	for n := range 10 {
		all = append(all, c.manyEndpoint(i, n, generation))
	}
	s := c.slice(name, name+"-x7k2p", all...)
	s.Labels["app.kubernetes.io/name"], s.Labels["app.kubernetes.io/instance"] = name, "release"
	return s
}

func (c *cluster) manyEndpoint(i, n, generation int) discoveryv1.Endpoint {
	yes, no := true, false
	node, zone := fmt.Sprintf("many-%d", n), fmt.Sprintf("zone-%d", n%3)
	pod := fmt.Sprintf("many-%d-%d-6f7c9d-%05d", i, generation, n)
	return discoveryv1.Endpoint{
		Addresses:  []string{netip.AddrFrom4([4]byte{10, byte(200 + generation%50), byte(i / 25), byte(1 + i%25*10 + n)}).String()},
		Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
		NodeName:   &node, Zone: &zone,
		TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: c.namespace, Name: pod, UID: types.UID("0d6c4c6e-1f2b-4c9e-9a57-" + fmt.Sprintf("%04d%04d%04d", i, n, generation))},
	}
}

// roll replaces Pods by Pods of a new generation, ten of each Service, one by one. As in a cluster, each replacement
// takes three writes of a slice: new Pod ready, old Pod terminating, old Pod removed.
func (c *cluster) roll(generation int) {
	GinkgoHelper()
	each(*manyPods/10, func(i int) error {
		slice := c.manySlice(i, generation-1)
		for n := range 10 {
			slice.Endpoints = append(slice.Endpoints, c.manyEndpoint(i, n, generation))
			if err := c.tryUpdate(slice); err != nil {
				return err
			}
			old := &slice.Endpoints[n]
			ready, terminating := false, true
			old.Conditions.Ready, old.Conditions.Terminating = &ready, &terminating
			if err := c.tryUpdate(slice); err != nil {
				return err
			}
			slice.Endpoints[n] = slice.Endpoints[10]
			slice.Endpoints = slice.Endpoints[:10]
			if err := c.tryUpdate(slice); err != nil {
				return err
			}
		}
		return nil
	})
}

func (c *cluster) tryUpdate(slice *discoveryv1.EndpointSlice) error {
	_, err := c.api.DiscoveryV1().EndpointSlices(c.namespace).Update(context.Background(), slice, metav1.UpdateOptions{})
	return err
}

// watchers is a running watchers command.
type watchers struct {
	like  string
	nodes int
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Scanner
}

// watched is a report of the command.
type watched struct {
	Synced, Received, Connections, Refused int64
	Lists                                  []time.Time
}

// figures are the costs of a step.
type figures struct {
	what             string
	took             time.Duration
	received         int64
	nodes, apiServer time.Duration // CPU time
}

// watch builds the command for the given number of nodes.
func watch(like string, nodes int) *watchers {
	GinkgoHelper()
	program := filepath.Join(GinkgoT().TempDir(), "watchers")
	build := exec.Command("go", "build", "-o", program, "./watchers")
	out, err := build.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", out)
	kubeconfig := leastRole(plane.Server())
	if like == "kube-proxy" {
		kubeconfig = plane.Kubeconfig(kubeProxyAccount(), plane.Server())
	}
	return &watchers{like: like, nodes: nodes, cmd: exec.Command(program, "-kubeconfig", kubeconfig, "-like", like, "-nodes", strconv.Itoa(nodes))}
}

// kubeProxyAccount returns kube-proxy's identity in a DaemonSet.
func kubeProxyAccount() control.Identity {
	GinkgoHelper()
	ctx := context.Background()
	meta := metav1.ObjectMeta{Name: "kube-proxy", Namespace: roleNamespace}
	_, err := plane.Client.CoreV1().ServiceAccounts(roleNamespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "kube-proxy"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-proxier"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: meta.Name, Namespace: meta.Namespace}}}
	_, err = plane.Client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	return plane.ServiceAccount(ctx, meta.Namespace, meta.Name)
}

func (w *watchers) begin() {
	GinkgoHelper()
	var err error
	w.in, err = w.cmd.StdinPipe()
	Expect(err).NotTo(HaveOccurred())
	out, err := w.cmd.StdoutPipe()
	Expect(err).NotTo(HaveOccurred())
	w.out = bufio.NewScanner(out)
	w.out.Buffer(nil, 1<<24)
	w.cmd.Stderr = GinkgoWriter
	controlSpace.Start(w.cmd)
	DeferCleanup(w.end)
}

// end ends the command if it runs.
func (w *watchers) end() {
	if w.in != nil {
		w.in.Close()
		_ = w.cmd.Wait()
		w.in = nil
	}
}

func (w *watchers) report() (r watched) {
	GinkgoHelper()
	fmt.Fprintln(w.in)
	Expect(w.out.Scan()).To(BeTrue(), "the watchers have ended")
	Expect(json.Unmarshal(w.out.Bytes(), &r)).To(Succeed())
	return r
}

// measure runs a step, waits until the nodes have received its effects, and returns the step's cost.
func (w *watchers) measure(what string, do func()) figures {
	GinkgoHelper()
	began, server := time.Now(), cpuOf(plane.APIServerPID())
	events := watchEvents()
	var before watched
	var nodes time.Duration
	if w.in != nil {
		before, nodes = w.report(), cpuOf(w.cmd.Process.Pid)
	}
	do()
	after := w.settle(quiet)
	f := figures{what: what, took: time.Since(began) - quiet, received: after.Received - before.Received,
		nodes: cpuOf(w.cmd.Process.Pid) - nodes, apiServer: cpuOf(plane.APIServerPID()) - server}
	n := int64(w.nodes)
	AddReportEntry(w.like+", "+what, fmt.Sprintf("%d nodes, %.1f s: each %d bytes, %d objects, %.1f ms of the processor, %d times everything asked; API server %.2f s of the processor (%.2f ms a node), %d MiB; watchers %d MiB, %d connections, %d refused",
		n, f.took.Seconds(), f.received/n, (watchEvents()-events)/n, f.nodes.Seconds()*1000/float64(n), (len(after.Lists)-len(before.Lists))/int(n),
		f.apiServer.Seconds(), f.apiServer.Seconds()*1000/float64(n), lab.Resident(plane.APIServerPID())>>20, lab.Resident(w.cmd.Process.Pid)>>20, after.Connections-before.Connections, after.Refused-before.Refused))
	return f
}

// quiet is the time without received bytes after which a step counts as complete.
const quiet = 2 * time.Second

func (w *watchers) settle(quiet time.Duration) (last watched) {
	GinkgoHelper()
	const every = 100 * time.Millisecond
	equal := 0 // reports in a row; time alone would also pass while a busy machine stops the watchers
	Eventually(func() int {
		now := w.report()
		if equal++; now.Received != last.Received {
			last, equal = now, 0
		}
		return equal
	}).WithTimeout(2 * time.Minute).WithPolling(every).Should(BeNumerically(">=", int(quiet/every)))
	return last
}

// again restarts the API server and reports when the nodes list everything again.
func (w *watchers) again() {
	GinkgoHelper()
	lists := len(w.report().Lists)
	killed := time.Now()
	plane.KillAPIServer()
	nodes := cpuOf(w.cmd.Process.Pid)
	received := w.report().Received
	plane.StartAPIServer(withFairness...)
	ready := time.Now()
	Eventually(func() int { return len(w.report().Lists) - lists }).WithTimeout(90*time.Second).Should(BeNumerically(">=", 3*w.nodes), "all objects are listed again")
	after := w.settle(6 * quiet) // client-go's backoff grows with each retry
	asked := after.Lists[lists:]
	slices.SortFunc(asked, time.Time.Compare)
	at := func(part float64) float64 { return asked[int(part*float64(len(asked)-1))].Sub(ready).Seconds() }
	most := 0 // within 1 s
	for i := range asked {
		j := i
		for j < len(asked) && asked[j].Sub(asked[i]) < time.Second {
			j++
		}
		most = max(most, j-i)
	}
	n := float64(w.nodes)
	AddReportEntry(w.like+", the API server started again", fmt.Sprintf("away for %.1f s; everything asked %d times, the first %.1f s after it was ready, half by %.1f, nine tenths by %.1f, the last %.1f; most within a second %d; each %.0f bytes, %.1f ms of the processor; API server %.2f s of the processor from its start, %d MiB; %d refused",
		ready.Sub(killed).Seconds(), len(asked), at(0), at(0.5), at(0.9), at(1), most, float64(after.Received-received)/n, (cpuOf(w.cmd.Process.Pid)-nodes).Seconds()*1000/n,
		cpuOf(plane.APIServerPID()).Seconds(), lab.Resident(plane.APIServerPID())>>20, after.Refused))
}

var watchEventsTotal = regexp.MustCompile(`(?m)^apiserver_watch_events_total\{[^}]*resource="(?:services|endpointslices|nodes|servicecidrs)"[^}]*\} (\S+)$`)

// watchEvents returns the number of objects that the API server has sent to watchers.
func watchEvents() (total int64) {
	GinkgoHelper()
	text, err := plane.Client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(context.Background())
	Expect(err).NotTo(HaveOccurred())
	for _, m := range watchEventsTotal.FindAllSubmatch(text, -1) {
		n, err := strconv.ParseFloat(string(m[1]), 64)
		Expect(err).NotTo(HaveOccurred())
		total += int64(n)
	}
	return total
}
