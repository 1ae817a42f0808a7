package cluster

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gexec"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/usherproxy/usher/test/bench/report"
	"github.com/usherproxy/usher/test/cluster/control"
	"github.com/usherproxy/usher/test/lab"
)

// These are the variables of `make bench CLUSTER=1`: the file to which results are appended, the number of rounds, and,
// for a trial, the number of Services.
const (
	resultsVariable  = "BENCH_RESULTS"
	roundsVariable   = "BENCH_ROUNDS"
	servicesVariable = "BENCH_SERVICES"
)

// This is a measurement for docs/benchmarks.md: the proxies run in rotation on one node, with an API server that has no
// other clients.
var _ = Describe("usher beside kube-proxy, with 10,000 Services of ten endpoints", Ordered, func() {
	var (
		b    *comparison
		last *corev1.Service // of the Services that exist from the start
	)
	BeforeAll(func() {
		if os.Getenv(resultsVariable) == "" {
			Skip("a measurement: make bench CLUSTER=1")
		}
		b = newComparison()
		for n := range 10 {
			serve(b.Pods, netip.AddrPortFrom(lab.Pod(n+1), 8080))
			b.endpoints = append(b.endpoints, endpoint(lab.Pod(n+1)))
		}
		last = b.create(variable(servicesVariable, 10_000))
	})

	It("is measured", func() {
		path := os.Getenv(resultsVariable)
		file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		Expect(err).NotTo(HaveOccurred())
		defer file.Close()
		known, err := report.Read(path)
		Expect(err).NotTo(HaveOccurred())
		for round := 1; round <= variable(roundsVariable, 1); round++ {
			for _, proxy := range b.contenders() {
				if known.Results.Has(report.Cluster, proxy.name, round) {
					continue
				}
				r := report.Result{Figure: report.Cluster, Peer: proxy.name, Round: round, Values: report.Values{}}
				if err := InterceptGomegaFailure(func() { b.measure(proxy, last, r.Values) }); err != nil {
					r.Failed = err.Error() // the other proxies are still measured
				}
				Expect(report.Write(file, r)).To(Succeed())
				fmt.Println(report.Line(r))
			}
		}
	})
})

// comparison is the cluster in which the proxies are compared.
type comparison struct {
	*cluster
	endpoints []discoveryv1.Endpoint
	late      int // number of Services created during measurements
}

// contender is one of the compared proxies.
type contender struct {
	name  string
	start func() *gexec.Session
}

func (b *comparison) contenders() []contender {
	config := plane.Kubeconfig(control.Admin, plane.Server())
	kubeProxy := func(mode string) contender {
		return contender{"kube-proxy-" + mode, func() *gexec.Session {
			// All other flags have their defaults. These three preserve settings of the whole machine.
			return startIn(b.Node, exec.Command(binaries.KubeProxy, "--kubeconfig="+config, "--proxy-mode="+mode, "--hostname-override="+here,
				"--cluster-cidr="+control.PodCIDR4, "--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0"))
		}}
	}
	usher := func(portal string) contender {
		return contender{"usher-" + portal, func() *gexec.Session { return b.launch(usherReleased, "--portal="+portal).Session }}
	}
	return []contender{kubeProxy("nftables"), usher("nftables"), kubeProxy("iptables"), usher("iptables")}
}

// newComparison returns a cluster without controllers, which would use CPU time. It needs no cleanup: this is the only
// selected spec, and the control plane ends with it.
func newComparison() *comparison {
	GinkgoHelper()
	plane.StopControllers()
	b := &comparison{cluster: &cluster{Lab: lab.New(), api: plane.Client, namespace: "comparison"}}
	b.connectControl()
	b.node = b.Node.NewDialer(8)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: b.namespace}}
	Expect(b.api.CoreV1().Namespaces().Create(context.Background(), namespace, metav1.CreateOptions{})).Error().NotTo(HaveOccurred())
	b.prepareNode()
	return b
}

// prepareNode sets the Node address that kube-proxy looks for.
func (b *comparison) prepareNode() {
	GinkgoHelper()
	nodes := b.api.CoreV1().Nodes()
	node, err := nodes.Get(context.Background(), here, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: lab.NodeOut4}}
	Expect(nodes.UpdateStatus(context.Background(), node, metav1.UpdateOptions{})).Error().NotTo(HaveOccurred())
}

// create creates Services with all endpoints and returns the last. It retries writes that time out because the API
// server is busy.
func (b *comparison) create(n int) *corev1.Service {
	GinkgoHelper()
	fmt.Printf("writing %d Services: some minutes\n", n)
	began := time.Now()
	name := func(i int) string { return fmt.Sprintf("many-%d", i) }
	each(n, func(i int) error {
		return retry.OnError(retry.DefaultBackoff, apierrors.IsTimeout, func() error {
			if _, err := b.tryService(name(i), noSelector); err != nil && !apierrors.IsAlreadyExists(err) {
				return err
			}
			return b.tryWrite(b.slice(name(i), name(i), b.endpoints...))
		})
	})
	fmt.Printf("written in %s\n", time.Since(began).Round(time.Second))
	last, err := b.api.CoreV1().Services(b.namespace).Get(context.Background(), name(n-1), metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	return last
}

// measure starts a proxy, measures it, fills v, and restores the node's state.
func (b *comparison) measure(proxy contender, last *corev1.Service, v report.Values) {
	GinkgoHelper()
	const patience = 5 * time.Minute
	began := time.Now()
	process := proxy.start()
	pid := process.Command.Process.Pid
	defer func() {
		process.Terminate().Wait(time.Minute)
		b.Node.Output("nft", "flush", "ruleset")
	}()
	answered := func(svc *corev1.Service, since time.Time) time.Duration {
		Eventually(impatient(b.node, vip(svc), 2*time.Millisecond)).WithTimeout(patience).WithPolling(time.Millisecond).Should(Not(BeZero()))
		return time.Since(since)
	}
	v[report.Start] = answered(last, began).Seconds()

	const quiet = 3 * time.Second
	before := time.Duration(0)
	Eventually(func() time.Duration {
		now := cpuOf(pid)
		defer func() { before = now }()
		return now - before
	}).WithTimeout(patience).WithPolling(quiet).Should(BeNumerically("<", quiet/20), "the proxy becomes idle")
	v[report.CPU] = cpuOf(pid).Seconds()
	v[report.Memory] = float64(lab.Resident(pid))

	const rest = 20 * time.Second
	before = cpuOf(pid)
	over := time.After(rest)
	Eventually(over).WithTimeout(2 * rest).Should(Receive())
	v[report.Rest] = 100 * (cpuOf(pid) - before).Seconds() / rest.Seconds()

	var took []time.Duration
	for range 5 {
		b.late++
		svc := b.service(fmt.Sprintf("late-%d", b.late), noSelector)
		slice := b.slice(svc.Name, svc.Name, b.endpoints...)
		began := time.Now() // before the write: the API server's time counts too
		b.cluster.write(slice)
		took = append(took, answered(svc, began))
	}
	slices.Sort(took)
	v[report.Change] = float64(took[len(took)/2]) / float64(time.Millisecond)
}

// variable returns the number in an environment variable, or otherwise if it is not set.
func variable(name string, otherwise int) int {
	GinkgoHelper()
	n, err := strconv.Atoi(cmp.Or(os.Getenv(name), strconv.Itoa(otherwise)))
	Expect(err).NotTo(HaveOccurred(), name)
	return n
}
