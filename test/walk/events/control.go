package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"runtime/coverage"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/cmd/usher/daemon"
)

// source is the source of the daemon's Services.
type source interface {
	configure(c *daemon.Config)
	addEndpoint() // to the Service web
	addService()
}

// makeControlEvents runs a daemon with one Service. It writes the coverage when nothing happens, when an endpoint is
// added and when a Service is added.
func makeControlEvents(dir string, s source) {
	c := daemon.Defaults()
	c.Log = logrus.New()
	c.Mode = "nftables"
	c.NodeName = "node"
	c.Proxy.CheckInterval = time.Hour // no check during an event
	s.configure(&c)
	ready := make(chan struct{})
	c.OnReady = func(daemon.Ready) { close(ready) }
	d, err := daemon.New(c)
	must(err)
	go func() { must(d.Run(context.Background(), nil)) }()
	<-ready
	time.Sleep(2 * time.Second) // for late work of the start
	for _, event := range []struct {
		name string
		make func()
	}{{"idle", func() {}}, {"endpoint", s.addEndpoint}, {"service", s.addService}} {
		to := filepath.Join(dir, event.name)
		must(os.Mkdir(to, 0o700))
		must(coverage.ClearCounters())
		mark(event.name)
		event.make()
		time.Sleep(2 * time.Second) // for debouncing and the update
		mark("end")
		must(coverage.WriteMetaDir(to))
		must(coverage.WriteCountersDir(to))
	}
}

// mark makes a system call that marks the start of an event in a trace.
func mark(name string) { _, _ = os.Stat("/walk-mark/" + name) }

const list = `{"apiVersion":"%s","kind":"%s","metadata":{"resourceVersion":"7"},"items":[%s]}`

func serviceObject(name, clusterIP string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Service",
"metadata":{"name":%[1]q,"namespace":"default","resourceVersion":"5","uid":"service-%[1]s","creationTimestamp":"2026-01-01T00:00:00Z"},
"spec":{"type":"ClusterIP","clusterIP":%[2]q,"clusterIPs":[%[2]q],"ipFamilies":["IPv4"],"ipFamilyPolicy":"SingleStack","internalTrafficPolicy":"Cluster",
"sessionAffinity":"None","selector":{"app":"web"},"ports":[{"name":"http","port":80,"protocol":"TCP","targetPort":8080}]}}`, name, clusterIP)
}

func sliceObject(service, version string, addresses ...string) string {
	var endpoints []string
	for _, a := range addresses {
		endpoints = append(endpoints, fmt.Sprintf(`{"addresses":[%q],"conditions":{"ready":true,"serving":true,"terminating":false},"nodeName":"node"}`, a))
	}
	return fmt.Sprintf(`{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice",
"metadata":{"name":"%[1]s-1","namespace":"default","resourceVersion":%[2]q,"uid":"slice-%[1]s","labels":{"kubernetes.io/service-name":%[1]q}},
"addressType":"IPv4","ports":[{"name":"http","port":8080,"protocol":"TCP"}],"endpoints":[%[3]s]}`, service, version, strings.Join(endpoints, ","))
}

// folder is a source of manifests.
type folder string

func newFolder() folder { return folder(tempDir()) }

func (f folder) write(name string, objects ...string) {
	writeFile(filepath.Join(string(f), name), fmt.Sprintf(list, "v1", "List", strings.Join(objects, ",")))
}

func (f folder) configure(c *daemon.Config) {
	f.write("web.json", serviceObject("web", "10.96.0.10"), sliceObject("web", "6", "10.1.0.1"))
	c.Manifests = []string{string(f)}
}

func (f folder) addEndpoint() {
	f.write("web.json", serviceObject("web", "10.96.0.10"), sliceObject("web", "10", "10.1.0.1", "10.1.0.2"))
}

func (f folder) addService() {
	f.write("new.json", serviceObject("new", "10.96.0.11"), sliceObject("new", "12", "10.1.0.9"))
}

// api is an API server with only the objects that usher lists and watches.
type api struct {
	mu      sync.Mutex
	watches map[string][]chan string // by the kind's name in URLs
}

func newAPI() *api { return &api{watches: map[string][]chan string{}} }

func (a *api) configure(c *daemon.Config) {
	c.Cluster.Kubeconfig = filepath.Join(tempDir(), "kubeconfig")
	writeFile(c.Cluster.Kubeconfig, fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
"clusters":[{"name":"k","cluster":{"server":%q}}],"users":[{"name":"u","user":{}}],"contexts":[{"name":"c","context":{"cluster":"k","user":"u"}}]}`,
		httptest.NewServer(a).URL))
}

func (a *api) addEndpoint() {
	a.send("endpointslices", "MODIFIED", sliceObject("web", "10", "10.1.0.1", "10.1.0.2"))
}

func (a *api) addService() {
	a.send("endpointslices", "ADDED", sliceObject("new", "11", "10.1.0.9"))
	time.Sleep(500 * time.Millisecond) // two watches: on a busy machine, the Service could arrive first, and need two updates
	a.send("services", "ADDED", serviceObject("new", "10.96.0.11"))
}

func (a *api) send(kind, change, object string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.watches[kind] {
		c <- watchEvent(change, object)
	}
}

// watchEvent returns an event in one line: a JSON decoder would wait for more of an object in several lines.
func watchEvent(change, object string) string {
	return fmt.Sprintf(`{"type":%q,"object":%s}`, change, strings.ReplaceAll(object, "\n", ""))
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kind := path.Base(r.URL.Path)
	served, ok := map[string]struct{ version, kind, object string }{
		"services":       {"v1", "Service", serviceObject("web", "10.96.0.10")},
		"endpointslices": {"discovery.k8s.io/v1", "EndpointSlice", sliceObject("web", "6", "10.1.0.1")},
		"nodes":          {"v1", "Node", ""},
	}[kind]
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Query().Get("watch") == "" {
		fmt.Fprintf(w, list, served.version, served.kind+"List", served.object)
		return
	}
	changes := make(chan string, 10)
	a.mu.Lock()
	a.watches[kind] = append(a.watches[kind], changes)
	a.mu.Unlock()
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		if served.object != "" {
			changes <- watchEvent("ADDED", served.object)
		}
		changes <- watchEvent("BOOKMARK", fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"resourceVersion":"7","annotations":{"k8s.io/initial-events-end":"true"}}}`, served.version, served.kind))
	}
	for {
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
			return
		case change := <-changes:
			fmt.Fprintln(w, change)
		}
	}
}
