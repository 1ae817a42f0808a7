// Command watchers runs the API server clients of many nodes in one process. Each node has usher's source (config/kube),
// without portal and proxy, or the informers of kube-proxy. The spec "many nodes" uses it.
//
// For each line on standard input it prints a [Report] as JSON.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/kube"
)

// Report holds the totals of all nodes so far.
type Report struct {
	Synced      int64       // nodes with a complete initial sync
	Received    int64       // bytes on the wire
	Connections int64       // connections made
	Lists       []time.Time // times of full lists
	Refused     int64       // requests that failed with an HTTP error
}

var (
	mu     sync.Mutex // guards report
	report Report
)

// use calls f with the report.
func use(f func(*Report)) {
	mu.Lock()
	defer mu.Unlock()
	f(&report)
}

func countSynced() { use(func(r *Report) { r.Synced++ }) }

func main() {
	kubeconfig := flag.String("kubeconfig", "", "`file` that says where the API server is")
	count := flag.Int("nodes", 1, "how many")
	like := flag.String("like", "usher", "whom: usher or kube-proxy")
	flag.Parse()
	klog.SetOutput(io.Discard)
	klog.LogToStderr(false)
	ctx := context.Background()
	for n := range *count {
		api, err := connect(*kubeconfig)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		node := fmt.Sprintf("many-%d", n)
		if *like == "usher" {
			err = usher(ctx, api, node)
		} else {
			err = kubeProxy(ctx, api, node)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		use(func(r *Report) { _ = json.NewEncoder(os.Stdout).Encode(r) })
	}
}

func usher(ctx context.Context, api *rest.Config, node string) error {
	client, err := kube.NewClient(api)
	if err != nil {
		return err
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	source, err := kube.New(kube.Options{Client: client, Log: log, NodeName: node})
	if err != nil {
		return err
	}
	first := sync.OnceFunc(countSynced)
	go func() {
		_ = source.Run(ctx, func([]config.Service) { first() })
	}()
	return nil
}

// resync is kube-proxy's configSyncPeriod.
const resync = 15 * time.Minute

// kubeProxy watches the objects that kube-proxy watches (cmd/kube-proxy/app/server.go and pkg/proxy/node.go, v1.36), and
// ignores the events.
func kubeProxy(ctx context.Context, api *rest.Config, node string) error {
	client, err := kubernetes.NewForConfig(api)
	if err != nil {
		return err
	}
	factory := func(labels, fields string) informers.SharedInformerFactory {
		return informers.NewSharedInformerFactoryWithOptions(client, resync, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.LabelSelector, o.FieldSelector = labels, fields
		}))
	}
	all := []cache.SharedIndexInformer{
		factory("!service.kubernetes.io/service-proxy-name", "spec.clusterIP!="+corev1.ClusterIPNone).Core().V1().Services().Informer(),
		factory("!"+corev1.IsHeadlessService, "").Discovery().V1().EndpointSlices().Informer(),
		factory("", "").Networking().V1().ServiceCIDRs().Informer(),
		factory("", fields.OneTermEqualSelector(metav1.ObjectNameField, node).String()).Core().V1().Nodes().Informer(),
	}
	var known []cache.InformerSynced
	for _, informer := range all {
		go informer.RunWithContext(ctx)
		known = append(known, informer.HasSynced)
	}
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), known...) {
			countSynced()
		}
	}()
	return nil
}

// connect returns a client configuration with a dedicated connection. client-go shares connections between clients with
// equal configurations.
func connect(kubeconfig string) (*rest.Config, error) {
	c, err := kube.Connection{Kubeconfig: kubeconfig}.RESTConfig()
	if err != nil {
		return nil, err
	}
	c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		use(func(r *Report) { r.Connections++ })
		return counted{conn}, nil
	}
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return asked{next} })
	return c, nil
}

// counted counts the received bytes.
type counted struct{ net.Conn }

func (c counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	use(func(r *Report) { r.Received += int64(n) })
	return n, err
}

// asked records the times of full lists, and of watches that begin with one.
type asked struct{ next http.RoundTripper }

func (a asked) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := a.next.RoundTrip(r)
	if err != nil {
		return answer, err
	}
	q := r.URL.Query()
	switch {
	case answer.StatusCode >= http.StatusBadRequest:
		use(func(r *Report) { r.Refused++ })
	case q.Get("watch") == "" || q.Get("sendInitialEvents") == "true":
		use(func(r *Report) { r.Lists = append(r.Lists, time.Now()) })
	}
	return answer, nil
}
