package control

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/usherproxy/usher/test/lab"
)

// These are the networks of the cluster.
const (
	ServiceCIDR4 = "10.96.0.0/16"
	ServiceCIDR6 = "fd00:10:96::/112"
	PodCIDR4     = "10.244.0.0/16"
)

const (
	etcdClient     = "http://127.0.0.1:2379"
	etcdPeer       = "http://127.0.0.1:2380"
	apiServerPort  = 6443
	managerHealthz = "127.0.0.1:10257"
)

// controllers have work in a cluster without kubelets: they handle Services, Pods and namespaces. The others would
// wait for nodes that never report.
var controllers = []string{
	"endpoints-controller", "endpointslice-controller", "endpointslice-mirroring-controller",
	"namespace-controller", "serviceaccount-controller", "garbage-collector-controller",
}

// Plane is a control plane. Its methods are not safe for concurrent use.
type Plane struct {
	// Client may do everything.
	Client kubernetes.Interface

	ns       *lab.Namespace
	address  netip.Addr
	binaries Binaries
	dir      string
	ca       *authority

	etcd, server, manager *process
}

// Start starts a control plane in ns and waits until it is ready. The API server listens at address, which ns must
// have. The end of the test stops the control plane.
func Start(ns *lab.Namespace, address netip.Addr, binaries Binaries) *Plane {
	GinkgoHelper()
	dir, err := os.MkdirTemp("", "usher-control-")
	Expect(err).NotTo(HaveOccurred())
	p := &Plane{ns: ns, address: address, binaries: binaries, dir: dir, ca: newAuthority()}
	DeferCleanup(p.stop)
	p.writeCertificates()
	p.Client, err = kubernetes.NewForConfig(p.Config(Admin))
	Expect(err).NotTo(HaveOccurred())

	p.etcd = start(ns, dir, "etcd", binaries.Etcd, "--name=test", "--data-dir="+p.path("etcd"),
		"--listen-client-urls="+etcdClient, "--advertise-client-urls="+etcdClient,
		"--listen-peer-urls="+etcdPeer, "--initial-advertise-peer-urls="+etcdPeer, "--initial-cluster=test="+etcdPeer,
		"--unsafe-no-fsync", "--logger=zap", "--log-level=warn")
	p.StartAPIServer()
	p.StartControllers()
	return p
}

// writeCertificates writes the files that the API server and the controllers read.
func (p *Plane) writeCertificates() {
	GinkgoHelper()
	p.write("ca.crt", p.ca.pem)
	cert, key := p.ca.server([]net.IP{p.address.AsSlice(), net.IPv4(127, 0, 0, 1), net.IPv4(10, 96, 0, 1), net.ParseIP("fd00:10:96::1")},
		"kubernetes", "kubernetes.default", "kubernetes.default.svc")
	p.write("apiserver.crt", cert)
	p.write("apiserver.key", key)
	p.write("serviceaccount.key", encodeKey(newKey()))
}

// StartAPIServer starts the API server with its previous address and data, and waits until it is ready. The flags
// override its own.
func (p *Plane) StartAPIServer(flags ...string) {
	GinkgoHelper()
	p.server = start(p.ns, p.dir, "kube-apiserver", p.binaries.APIServer, append([]string{
		"--etcd-servers=" + etcdClient,
		"--bind-address=" + p.address.String(), fmt.Sprintf("--secure-port=%d", apiServerPort), "--advertise-address=" + p.address.String(),
		"--tls-cert-file=" + p.path("apiserver.crt"), "--tls-private-key-file=" + p.path("apiserver.key"), "--client-ca-file=" + p.path("ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + p.path("serviceaccount.key"), "--service-account-signing-key-file=" + p.path("serviceaccount.key"),
		"--authorization-mode=RBAC",
		"--service-cluster-ip-range=" + ServiceCIDR4 + "," + ServiceCIDR6,
		// Pods need no ServiceAccount: no program in them uses the API server.
		"--disable-admission-plugins=ServiceAccount",
		// kubeadm sets this, too: usher's init container is privileged.
		"--allow-privileged=true",
		"--max-requests-inflight=0", "--max-mutating-requests-inflight=0", "--enable-priority-and-fairness=false",
	}, flags...)...)
	p.ready(p.server, "readyz of kube-apiserver", p.httpClient(), "https://"+p.apiServer()+"/readyz")
}

// APIServerPID is the PID of the API server.
func (p *Plane) APIServerPID() int { return p.server.cmd.Process.Pid }

// KillAPIServer kills the API server, as kill -9 does.
func (p *Plane) KillAPIServer() { p.server.stop(syscall.SIGKILL) }

// StartControllers starts kube-controller-manager and waits until it is ready.
func (p *Plane) StartControllers() {
	GinkgoHelper()
	kubeconfig := p.Kubeconfig(Admin, p.Server())
	p.manager = start(p.ns, p.dir, "kube-controller-manager", p.binaries.ControllerManager,
		"--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig,
		"--controllers="+strings.Join(controllers, ","),
		"--bind-address=127.0.0.1", "--cert-dir="+p.path("manager"), "--leader-elect=false",
		"--service-account-private-key-file="+p.path("serviceaccount.key"),
		"--kube-api-qps=1000", "--kube-api-burst=2000",
		"--concurrent-service-endpoint-syncs=10", "--concurrent-endpoint-syncs=10", "--mirroring-concurrent-service-endpoint-syncs=5",
		"--min-resync-period=12h",
	)
	insecure := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DialContext: p.dialContext} // it signs its own certificate
	p.ready(p.manager, "healthz of kube-controller-manager", &http.Client{Transport: insecure, Timeout: 5 * time.Second}, "https://"+managerHealthz+"/healthz")
}

// StopControllers ends kube-controller-manager.
func (p *Plane) StopControllers() { p.manager.stop(syscall.SIGTERM) }

// stop stops all components and removes their files.
func (p *Plane) stop() {
	p.manager.stop(syscall.SIGKILL)
	p.server.stop(syscall.SIGKILL)
	p.etcd.stop(syscall.SIGKILL)
	_ = os.RemoveAll(p.dir)
}

// Logs returns the last lines of each component's log.
func (p *Plane) Logs(lines int) string {
	return p.etcd.tail(lines) + p.server.tail(lines) + p.manager.tail(lines)
}

// Server is the URL of the API server.
func (p *Plane) Server() string { return "https://" + p.apiServer() }

func (p *Plane) apiServer() string { return netip.AddrPortFrom(p.address, apiServerPort).String() }

// ready waits until url returns 200, and fails if the component exits.
func (p *Plane) ready(c *process, what string, client *http.Client, url string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		if !c.runs() {
			StopTrying(c.name + " has ended\n" + c.tail(30)).Now()
		}
		response, err := client.Get(url)
		g.Expect(err).NotTo(HaveOccurred())
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		g.Expect(response.StatusCode).To(Equal(http.StatusOK), "%s", body)
	}).WithTimeout(90*time.Second).WithPolling(100*time.Millisecond).Should(Succeed(), func() string { return what + "\n" + c.tail(30) })
}

// httpClient returns an HTTP client that may do everything.
func (p *Plane) httpClient() *http.Client {
	GinkgoHelper()
	config := p.Config(Admin)
	config.Timeout = 5 * time.Second
	client, err := rest.HTTPClientFor(config)
	Expect(err).NotTo(HaveOccurred())
	return client
}

// dial connects to an address from within the control plane's namespace.
func (p *Plane) dial(address string) (conn net.Conn, err error) {
	p.ns.Do(func() error {
		conn, err = net.DialTimeout("tcp", address, 5*time.Second)
		return nil
	})
	return conn, err
}

func (p *Plane) dialContext(_ context.Context, _, address string) (net.Conn, error) {
	return p.dial(address)
}

func (p *Plane) path(name string) string { return filepath.Join(p.dir, name) }

func (p *Plane) write(name string, content []byte) string {
	GinkgoHelper()
	Expect(os.WriteFile(p.path(name), content, 0o600)).To(Succeed())
	return p.path(name)
}
