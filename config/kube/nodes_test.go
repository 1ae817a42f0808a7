package kube

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"sync"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/usherproxy/usher/config"
)

func TestNodesAreWatchedOnceHoweverManyServicesNeedLabels(t *testing.T) {
	g := NewWithT(t)
	log := logrus.New()
	log.SetOutput(t.Output())
	n := &nodeLabels{client: metadata.NewForConfigOrDie(&rest.Config{Host: "127.0.0.1:1"}), log: log, moved: func() {}}
	t.Cleanup(n.all.Wait) // after the end of t.Context
	g.Expect(n.ready()).To(BeTrue())
	n.watch(t.Context())
	g.Expect(n.ready()).To(BeFalse(), "no Node is listed yet")
	first := n.store
	node := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"example.com/rack": "r1"}}}
	g.Expect(first.Add(node)).To(Succeed())
	n.watch(t.Context())
	g.Expect(n.store).To(BeIdenticalTo(first))
	g.Expect(n.of("n1")).To(Equal(node.Labels))
}

var _ = It("a Service deleted while the first list of Nodes is awaited is not served", func() {
	object := func(name, annotations string) string {
		return fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"default","annotations":{%s}},"spec":{"clusterIP":"10.96.0.1","clusterIPs":["10.96.0.1"],"ports":[{"port":80}]}}`, name, annotations)
	}
	deleted, listed := make(chan struct{}), make(chan struct{})
	server := newFakeServer()
	server.become(func(w http.ResponseWriter, r *http.Request) bool {
		services, watch := filepath.Base(r.URL.Path) == "services", isWatch(r)
		switch {
		case filepath.Base(r.URL.Path) == "nodes":
			select {
			case <-r.Context().Done():
			case <-listed:
			}
			return false
		case r.URL.Query().Has("sendInitialEvents") || !services:
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		if !watch {
			fmt.Fprintf(w, `{"apiVersion":"v1","kind":"ServiceList","metadata":{"resourceVersion":"1"},"items":[%s,%s]}`, object("plain", ""), object("keyed", `"usher.io/topology-keys":"example.com/rack"`))
			return true
		}
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
		case <-deleted:
			fmt.Fprintf(w, `{"type":"DELETED","object":{"apiVersion":"v1","kind":"Service",%s}`+"\n", object("plain", "")[1:])
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}
		return true
	})
	client, _, err := Connection{Kubeconfig: server.kubeconfig(nil)}.Connect()
	Expect(err).NotTo(HaveOccurred())
	logger, _ := logtest.NewNullLogger()
	s, err := New(Options{Client: client, Metadata: client.Metadata, Log: logger})
	Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	applied := make(chan []config.Service, 10)
	var running sync.WaitGroup
	running.Go(func() { _ = s.Run(ctx, func(services []config.Service) { applied <- services }) })
	DeferCleanup(running.Wait)
	DeferCleanup(cancel)
	Eventually(s.names).WithTimeout(patience).Should(HaveLen(2))
	Consistently(applied).ShouldNot(Receive(), "the Nodes are not listed")
	close(deleted)
	Eventually(s.names).WithTimeout(patience).Should(HaveLen(1))
	close(listed)
	Eventually(applied).WithTimeout(patience).Should(Receive(HaveExactElements(HaveField("Name.Name", "keyed"))))
})
