package cluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cri-streaming/pkg/streaming/portforward"

	"github.com/usherproxy/usher/test/lab"
)

// remote is a Node whose Pods are reachable only for the API server, through a kubelet.
const remote = "remote"

// kubelet is the part of a kubelet that serves port-forward to the API server. It uses Kubernetes' own library, and
// acts as containerd does instead of using a container runtime.
type kubelet struct {
	cluster   *cluster
	dialer    *lab.Dialer
	hosts     map[string]*lab.Dialer // by Node, for Pods on the host's network
	forwarded atomic.Int64           // number of connections
	replaced  atomic.Int64           // how often all Pods were replaced by others with the same names
	status    func(*corev1.Node)     // writes its address to a Node's status
}

// startKubelet creates the Node with its kubelet, which listens on the node's side of the cable to the control plane.
func (c *cluster) startKubelet() *kubelet {
	GinkgoHelper()
	k := c.newKubelet()
	createNode(remote, k.status)
	DeferCleanup(deleteNode, remote)
	return k
}

// newKubelet starts a kubelet without a Node. It serves the Nodes whose status its status function has updated.
func (c *cluster) newKubelet() *kubelet {
	GinkgoHelper()
	k := &kubelet{cluster: c, dialer: c.Pods.NewDialer(64), hosts: map[string]*lab.Dialer{}}
	listener := c.Node.Listen("198.51.100.2:0")
	server := httptest.NewUnstartedServer(http.HandlerFunc(k.serve))
	Expect(server.Listener.Close()).To(Succeed())
	server.Listener = listener
	server.StartTLS()
	DeferCleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	k.status = func(n *corev1.Node) {
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "198.51.100.2"}}
		n.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(listener.Addr().(*net.TCPAddr).Port)
	}
	return k
}

// serve handles /portForward/NAMESPACE/POD.
func (k *kubelet) serve(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/portForward/")
	portforward.ServePortForward(w, r, k, name, fmt.Sprint(k.replaced.Load()), &portforward.V4Options{}, time.Minute, 30*time.Second, portforward.SupportedProtocols)
}

// PortForward implements portforward.PortForwarder. A Pod's localhost is its address here, except for a Pod on its
// host's network. As with containerd, a connection from the API server leads to one sandbox, and when one direction has
// ended, the other has 1 s to finish.
func (k *kubelet) PortForward(ctx context.Context, name, uid string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	if uid != fmt.Sprint(k.replaced.Load()) {
		return fmt.Errorf("failed to find sandbox %q in store: not found", uid)
	}
	namespace, name, _ := strings.Cut(name, "/")
	pod, err := k.cluster.api.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("failed to find sandbox: %w", err)
	}
	dialer, address := k.dialer, pod.Status.PodIP
	if pod.Spec.HostNetwork {
		dialer, address = k.hosts[pod.Spec.NodeName], "127.0.0.1"
	}
	conn, err := dialer.Dial("", at(address, port), 3*time.Second)
	if err != nil {
		return fmt.Errorf("failed to connect to localhost:%d inside namespace %q: %w", port, name, err)
	}
	defer conn.Close()
	k.forwarded.Add(1)
	ended := make(chan error, 2)
	for _, way := range [][2]io.ReadWriter{{stream, conn}, {conn, stream}} {
		go func() {
			_, err := io.Copy(way[0], way[1])
			ended <- err
		}()
	}
	err = <-ended
	select {
	case also := <-ended:
		if err == nil {
			err = also
		}
	case <-time.After(time.Second):
	}
	return err
}
