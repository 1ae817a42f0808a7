package cluster

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/usherproxy/usher/test/lab"
)

// These Nodes always exist; usher runs on the first.
const (
	here      = "here"
	elsewhere = "elsewhere"
)

var (
	zones    = map[string]string{here: "zone-a", elsewhere: "zone-b"}
	podCIDRs = map[string][]string{here: {"10.244.0.0/24", "fd00:244::/64"}, elsewhere: {"10.244.1.0/24", "fd00:244:0:1::/64"}}
)

// prepareCluster creates the objects that all specs share.
func prepareCluster() {
	GinkgoHelper()
	for name := range zones {
		createNode(name)
	}
	createAccount(roleName, deployedRules())
}

func createNode(name string, edit ...func(*corev1.Node)) {
	GinkgoHelper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelTopologyZone: zones[name]}}}
	if cidrs := podCIDRs[name]; cidrs != nil {
		node.Spec.PodCIDR, node.Spec.PodCIDRs = cidrs[0], cidrs
	}
	for _, e := range edit {
		e(node)
	}
	Expect(plane.Client.CoreV1().Nodes().Create(context.Background(), node, metav1.CreateOptions{})).Error().NotTo(HaveOccurred())
}

// cluster is the environment of a spec: a network and a namespace in the API server.
type cluster struct {
	*lab.Lab
	api       kubernetes.Interface
	namespace string

	// These clients are a Pod, a process on the node and a machine outside.
	pod, node, outside *lab.Dialer
}

var clusters int // number of clusters so far

// newCluster returns a cluster without Services, except default/kubernetes. The end of the spec removes it.
func newCluster() *cluster {
	GinkgoHelper()
	clusters++
	c := &cluster{Lab: lab.New(), api: plane.Client, namespace: fmt.Sprintf("spec-%d", clusters)}
	c.connectControl()
	c.pod, c.node, c.outside = c.Pods.NewDialer(64), c.Node.NewDialer(8), c.Outside.NewDialer(8)
	c.createNamespace()
	DeferCleanup(func() {
		if CurrentSpecReport().Failed() {
			GinkgoWriter.Println(plane.Logs(15))
		}
	})
	return c
}

// connectControl adds a cable between the node and the control plane.
func (c *cluster) connectControl() {
	GinkgoHelper()
	c.Node.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "to-control"}, PeerName: "node", PeerNamespace: netlink.NsFd(controlHandle)})
	})
	c.Node.Output("ip", "address", "add", "198.51.100.2/24", "dev", "to-control")
	c.Node.Output("ip", "link", "set", "to-control", "up")
	controlSpace.Output("ip", "link", "set", "node", "up")
	controlSpace.Output("ip", "route", "add", "198.51.100.2/32", "dev", "node", "src", controlAddress.String())
	c.Node.WaitForCarrier("to-control")
	// Delete it here: the kernel may take long to remove a namespace.
	DeferCleanup(func() { c.Node.Output("ip", "link", "delete", "to-control") })
}

func (c *cluster) createNamespace() {
	GinkgoHelper()
	ctx := context.Background()
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.namespace}}
	Expect(c.api.CoreV1().Namespaces().Create(ctx, object, metav1.CreateOptions{})).Error().NotTo(HaveOccurred())
	DeferCleanup(func() {
		c.clear()
		Expect(c.api.CoreV1().Namespaces().Delete(ctx, c.namespace, metav1.DeleteOptions{})).To(Succeed())
	})
}

// clear deletes the objects that the next spec must not see. When the namespace is deleted, its controller deletes the
// rest later.
func (c *cluster) clear() {
	GinkgoHelper()
	ctx, now, all := context.Background(), metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, metav1.ListOptions{}
	Expect(c.deleteServices()).To(Succeed())
	Expect(c.api.CoreV1().Pods(c.namespace).DeleteCollection(ctx, now, all)).To(Succeed())
	Expect(c.api.DiscoveryV1().EndpointSlices(c.namespace).DeleteCollection(ctx, now, all)).To(Succeed())
}

// forget is clear for specs that share one usher process: it waits until that serves nothing of the namespace.
func (c *cluster) forget() {
	GinkgoHelper()
	c.clear()
	Eventually(getting(c.node, adminURL+"/api/v1/services")).WithTimeout(soon).ShouldNot(HaveField("Body", ContainSubstring(`"`+c.namespace+`"`)))
}

// service creates a Service: port "main", 80 → 8080, for the Pods with the label app=name. edit can change it.
func (c *cluster) service(name string, edit ...func(*corev1.Service)) *corev1.Service {
	GinkgoHelper()
	var svc *corev1.Service
	// An API server that has just started reports that it is ready before it can allocate cluster IPs.
	Eventually(func() (err error) {
		svc, err = c.tryService(name, edit...)
		return err
	}).WithTimeout(soon).Should(Succeed())
	return svc
}

func (c *cluster) tryService(name string, edit ...func(*corev1.Service)) (*corev1.Service, error) {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": name},
			Ports:    []corev1.ServicePort{{Name: "main", Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	for _, e := range edit {
		e(svc)
	}
	return c.api.CoreV1().Services(c.namespace).Create(context.Background(), svc, metav1.CreateOptions{})
}

// update changes a Service.
func (c *cluster) update(name string, edit func(*corev1.Service)) *corev1.Service {
	GinkgoHelper()
	services := c.api.CoreV1().Services(c.namespace)
	return change(services.Get, services.Update, name, edit)
}

// annotate sets an annotation on a Service, or removes it if the value is empty.
func (c *cluster) annotate(service, name, value string) {
	GinkgoHelper()
	c.update(service, func(s *corev1.Service) {
		if s.Annotations == nil {
			s.Annotations = map[string]string{}
		}
		if s.Annotations[name] = value; value == "" {
			delete(s.Annotations, name)
		}
	})
}

// whom returns a function for Eventually that makes 12 connections from a Pod and counts them by endpoint.
func (c *cluster) whom(svc *corev1.Service) func() (map[netip.AddrPort]int, error) {
	return func() (map[netip.AddrPort]int, error) {
		counts := map[netip.AddrPort]int{}
		for range 12 {
			addr, err := ask(c.pod, vip(svc))
			if err != nil {
				return nil, err
			}
			counts[addr]++
		}
		return counts, nil
	}
}

// updateStatus changes a Service's status, as a cloud controller does.
func (c *cluster) updateStatus(name string, edit func(*corev1.Service)) *corev1.Service {
	GinkgoHelper()
	services := c.api.CoreV1().Services(c.namespace)
	return change(services.Get, services.UpdateStatus, name, edit)
}

// change edits an object of the API server. It repeats this if another client wrote the object in between.
func change[T any](
	get func(context.Context, string, metav1.GetOptions) (*T, error),
	write func(context.Context, *T, metav1.UpdateOptions) (*T, error),
	name string, edit func(*T),
) (object *T) {
	GinkgoHelper()
	ctx := context.Background()
	Expect(retry.RetryOnConflict(retry.DefaultRetry, func() (err error) {
		if object, err = get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		edit(object)
		object, err = write(ctx, object, metav1.UpdateOptions{})
		return err
	})).To(Succeed())
	return object
}

// deleteServices deletes all Services of the namespace, for which the typed client has no method.
func (c *cluster) deleteServices() error {
	return c.api.CoreV1().RESTClient().Delete().Namespace(c.namespace).Resource("services").Do(context.Background()).Error()
}

// deleteService deletes a Service.
func (c *cluster) deleteService(name string) {
	GinkgoHelper()
	Expect(c.api.CoreV1().Services(c.namespace).Delete(context.Background(), name, metav1.DeleteOptions{})).To(Succeed())
}

// noSelector is for Services whose EndpointSlices the spec writes.
func noSelector(svc *corev1.Service) { svc.Spec.Selector = nil }

// nodePort makes a Service a NodePort Service.
func nodePort(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeNodePort }

// vip returns the address for clients of a Service's first port.
func vip(svc *corev1.Service) string { return vipOf(svc, svc.Spec.Ports[0].Port) }

func vipOf(svc *corev1.Service, port int32) string { return at(svc.Spec.ClusterIP, port) }

func at(address string, port int32) string { return net.JoinHostPort(address, strconv.Itoa(int(port))) }

// kubernetesPod is a Pod with a server that listens on port 8080 of both of its addresses.
type kubernetesPod struct {
	*server         // on the IPv4 address
	six     *server // on the IPv6 address
	name    string
	cluster *cluster
}

// startPod creates Pod number n of an app on a Node, starts its server, and reports it ready, as a kubelet would.
func (c *cluster) startPod(app string, n int, node string, edit ...func(*corev1.Pod)) *kubernetesPod {
	GinkgoHelper()
	p := &kubernetesPod{
		server:  serve(c.Pods, netip.AddrPortFrom(lab.Pod(n), 8080)),
		six:     serve(c.Pods, netip.AddrPortFrom(lab.Pod6(n), 8080)),
		name:    fmt.Sprintf("%s-%d", app, n),
		cluster: c,
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: p.name, Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{
			NodeName:   node,
			Containers: []corev1.Container{{Name: "server", Image: "none", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}}},
		},
	}
	for _, e := range edit {
		e(pod)
	}
	Expect(c.api.CoreV1().Pods(c.namespace).Create(context.Background(), pod, metav1.CreateOptions{})).Error().NotTo(HaveOccurred())
	p.report(true)
	return p
}

// report writes the Pod's readiness to its status.
func (p *kubernetesPod) report(ready bool) {
	GinkgoHelper()
	pods := p.cluster.api.CoreV1().Pods(p.cluster.namespace)
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	change(pods.Get, pods.UpdateStatus, p.name, func(pod *corev1.Pod) {
		pod.Status.Phase = corev1.PodRunning
		pod.Status.PodIP = p.addr.Addr().String()
		pod.Status.PodIPs = []corev1.PodIP{{IP: p.addr.Addr().String()}, {IP: p.six.addr.Addr().String()}}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}, {Type: corev1.ContainersReady, Status: status}}
	})
}

// terminate deletes the Pod. Without a kubelet, it stays in state terminating until remove.
func (p *kubernetesPod) terminate() {
	GinkgoHelper()
	p.delete(300)
}

// remove removes the Pod, as a kubelet does after its containers have exited.
func (p *kubernetesPod) remove() {
	GinkgoHelper()
	p.delete(0)
}

func (p *kubernetesPod) delete(graceSeconds int64) {
	GinkgoHelper()
	err := p.cluster.api.CoreV1().Pods(p.cluster.namespace).Delete(context.Background(), p.name, metav1.DeleteOptions{GracePeriodSeconds: &graceSeconds})
	if !apierrors.IsNotFound(err) {
		Expect(err).NotTo(HaveOccurred())
	}
}

// endpoint returns an endpoint for a slice that the spec writes.
func endpoint(addr netip.Addr, edit ...func(*discoveryv1.Endpoint)) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{addr.String()}, Conditions: conditions(true, true, false)}
	for _, f := range edit {
		f(&e)
	}
	return e
}

func conditions(ready, serving, terminating bool) discoveryv1.EndpointConditions {
	return discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
}

// slice returns an EndpointSlice for a Service's port "main" and port 8080 of the endpoints.
func (c *cluster) slice(service, name string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	main, port := "main", int32(8080)
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: c.namespace, Labels: map[string]string{
			discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: "usher-test"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &main, Port: &port}},
		Endpoints:   endpoints,
	}
}

// write creates an EndpointSlice, or replaces the one of that name.
func (c *cluster) write(slice *discoveryv1.EndpointSlice) {
	GinkgoHelper()
	Expect(c.tryWrite(slice)).To(Succeed())
}

func (c *cluster) tryWrite(slice *discoveryv1.EndpointSlice) error {
	slices, ctx := c.api.DiscoveryV1().EndpointSlices(c.namespace), context.Background()
	_, err := slices.Create(ctx, slice, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = slices.Update(ctx, slice, metav1.UpdateOptions{})
	}
	return err
}

// slices returns the endpoints in the EndpointSlices of a Service, of both families.
func (c *cluster) slices(service string) (list []discoveryv1.Endpoint) {
	GinkgoHelper()
	found, err := c.api.DiscoveryV1().EndpointSlices(c.namespace).List(context.Background(), metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	Expect(err).NotTo(HaveOccurred())
	for _, s := range found.Items {
		list = append(list, s.Endpoints...)
	}
	return list
}

// soon is the maximum time for a change to pass through controllers and usher on a busy machine. Other specs measure
// latencies.
const soon = time.Minute

// updateNode changes a Node.
func updateNode(name string, edit func(*corev1.Node)) {
	GinkgoHelper()
	nodes := plane.Client.CoreV1().Nodes()
	change(nodes.Get, nodes.Update, name, edit)
}

// updateNodeStatus changes a Node's status, as its kubelet does.
func updateNodeStatus(name string, edit func(*corev1.Node)) {
	GinkgoHelper()
	nodes := plane.Client.CoreV1().Nodes()
	change(nodes.Get, nodes.UpdateStatus, name, edit)
}

// deleteNode deletes a Node if it exists.
func deleteNode(name string) {
	GinkgoHelper()
	err := plane.Client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{})
	if !apierrors.IsNotFound(err) {
		Expect(err).NotTo(HaveOccurred())
	}
}
