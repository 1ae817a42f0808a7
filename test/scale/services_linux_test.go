package scale

import (
	"bufio"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/test/lab"
)

// backendPort is the port of all endpoints.
const backendPort = 8080

const (
	many             = 10_000
	endpointsPerPort = 10
)

// clusterIP returns the VIP of Service number i.
func clusterIP(i int) string { return fmt.Sprintf("10.96.%d.%d", i/250, 1+i%250) }

func vip(i int) string { return clusterIP(i) + ":80" }

// serve returns a folder with manifests of count Services in the format of `kubectl get -o json`. Each endpoint is a Pod
// on a node in a zone. Only the last Service's endpoints answer.
func serve(count int) (dir string) {
	GinkgoHelper()
	dir = GinkgoT().TempDir()
	file, err := os.Create(filepath.Join(dir, "services.json"))
	Expect(err).NotTo(HaveOccurred())
	w := bufio.NewWriter(file)
	fmt.Fprint(w, `{"apiVersion": "v1", "kind": "List", "items": [`)
	for i := range count {
		if i > 0 {
			fmt.Fprint(w, ",\n")
		}
		writeService(w, i, i == count-1)
	}
	fmt.Fprint(w, "]}\n")
	Expect(w.Flush()).To(Succeed())
	Expect(file.Close()).To(Succeed())
	// At each change, usher reads files with a recent modification time again.
	old := time.Now().Add(-time.Minute)
	Expect(os.Chtimes(file.Name(), old, old)).To(Succeed())
	return dir
}

// add writes a file for one more Service to dir. Its endpoints answer.
func add(dir string, i int) {
	GinkgoHelper()
	writeOne(filepath.Join(dir, fmt.Sprintf("added-%d.json", i)), i)
}

// replaceAll replaces all files in dir by one for Service number i. Its endpoints answer.
func replaceAll(dir string, i int) {
	GinkgoHelper()
	writeOne(filepath.Join(dir, "services.json"), i)
}

func writeOne(path string, i int) {
	GinkgoHelper()
	file, err := os.Create(path + ".new")
	Expect(err).NotTo(HaveOccurred())
	w := bufio.NewWriter(file)
	fmt.Fprint(w, `{"apiVersion": "v1", "kind": "List", "items": [`)
	writeService(w, i, true)
	fmt.Fprint(w, "]}\n")
	Expect(w.Flush()).To(Succeed())
	Expect(file.Close()).To(Succeed())
	Expect(os.Rename(path+".new", path)).To(Succeed())
}

func writeService(w *bufio.Writer, i int, live bool) {
	fmt.Fprintf(w, `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s%d", "namespace": "ns%d"}, "spec": {"clusterIP": %q, "ports": [{"name": "http", "port": 80}]}},
{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "s%d-abcde", "namespace": "ns%d", "labels": {"kubernetes.io/service-name": "s%d"}},
 "addressType": "IPv4", "ports": [{"name": "http", "port": %d}], "endpoints": [`, i, i%50, clusterIP(i), i, i%50, i, backendPort)
	for e := range endpointsPerPort {
		pod := i*endpointsPerPort + e
		addr := netip.AddrFrom4([4]byte{10, 128 + byte(pod>>16), byte(pod >> 8), byte(pod)})
		if live {
			addr = lab.Pod(e + 1)
		}
		if e > 0 {
			fmt.Fprint(w, ",")
		}
		fmt.Fprintf(w, `
  {"addresses": [%q], "conditions": {"ready": true}, "nodeName": "node-%d", "zone": "zone-%d", "targetRef": {"kind": "Pod", "namespace": "ns%d", "name": "s%d-7d4b9c6f5d-%x"}}`,
			addr, pod%100, pod%3, i%50, i, pod)
	}
	fmt.Fprint(w, "]}")
}
