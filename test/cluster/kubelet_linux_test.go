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

// remote is a Node whose Pods only the API server reaches, through a kubelet.
const remote = "remote"

// kubelet is the side of a kubelet that the API server talks to for port-forward:
// Kubernetes' own library, and in place of a container runtime what containerd
// does.
type kubelet struct {
	cluster   *cluster
	dialer    *lab.Dialer
	hosts     map[string]*lab.Dialer // by Node, for Pods on the host's network
	forwarded atomic.Int64           // connections
	status    func(*corev1.Node)     // says in a Node's status where it is
}

// startKubelet creates the Node with its kubelet, which answers on the node's side
// of the cable to the control plane.
func (c *cluster) startKubelet() *kubelet {
	GinkgoHelper()
	k := c.newKubelet()
	createNode(remote, k.status)
	DeferCleanup(deleteNode, remote)
	return k
}

// newKubelet starts the kubelet of no Node yet: those whose status it has written into are asked there.
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

// serve answers /portForward/NAMESPACE/POD.
func (k *kubelet) serve(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/portForward/")
	portforward.ServePortForward(w, r, k, name, "", &portforward.V4Options{}, time.Minute, 30*time.Second, portforward.SupportedProtocols)
}

// PortForward implements portforward.PortForwarder. A Pod's localhost is its
// address here, but for one on its host's network. As with containerd, when one direction has ended the other has a
// second.
func (k *kubelet) PortForward(ctx context.Context, name, _ string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
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
