package test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"

	"github.com/usherproxy/usher/test/lab"
)

// webServer is an HTTP endpoint: it has an address for clients and a status for requests to /healthz.
type webServer struct {
	addr    netip.AddrPort
	status  atomic.Int32
	clients atomic.Int32 // number of requests from clients
}

func startWebServer(ns *lab.Namespace, addr netip.Addr) *webServer {
	GinkgoHelper()
	w := &webServer{addr: netip.AddrPortFrom(addr, 8080)}
	w.status.Store(http.StatusOK)
	answers := http.NewServeMux()
	answers.HandleFunc("/", func(out http.ResponseWriter, _ *http.Request) {
		w.clients.Add(1)
		fmt.Fprint(out, w.addr)
	})
	answers.HandleFunc("/healthz", func(out http.ResponseWriter, _ *http.Request) {
		out.WriteHeader(int(w.status.Load()))
	})
	server := &http.Server{Handler: answers, ErrorLog: log.New(GinkgoWriter, "", 0)}
	listener := ns.Listen(w.addr.String())
	go func() { _ = server.Serve(listener) }()
	DeferCleanup(server.Close)
	return w
}

var _ = Describe("endpoints of a Service with probe annotations", func() {
	// endpointsByHand writes a Service without selector and its Endpoints.
	endpointsByHand := func(name, vip, annotations string, endpoints ...netip.AddrPort) string {
		var addresses []string
		for _, e := range endpoints {
			addresses = append(addresses, fmt.Sprintf("{ip: %q}", e.Addr()))
		}
		return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %[1]s, namespace: default, annotations: {%[2]s}}\n"+
			"spec:\n  clusterIP: %[3]q\n  ports: [{port: 80, targetPort: 8080}]\n---\n"+
			"apiVersion: v1\nkind: Endpoints\nmetadata: {name: %[1]s, namespace: default}\nsubsets: [{addresses: [%[4]s], ports: [{port: 8080}]}]\n",
			name, annotations, vip, strings.Join(addresses, ", "))
	}

	for _, portal := range []string{"iptables", "nftables", "address"} {
		It("get no connections while their probes fail, over IPv4 and IPv6: "+portal, func() {
			if portal == "iptables" {
				missing("iptables")
			}
			l, dir := lab.New(), manifestsDir()
			pod := l.Pods.NewDialer(4)
			var u *usher
			for _, f := range []struct {
				name, vip string
				at        func(int) netip.Addr
			}{{"four", clusterIP, lab.Pod}, {"six", "fd00:10:96::10", lab.Pod6}} {
				By("testing " + f.name)
				good, bad := startWebServer(l.Pods, f.at(1)), startWebServer(l.Pods, f.at(2))
				web := service{clusterIP: f.vip, port: 80}
				// asked sends some requests and counts the answers by endpoint.
				asked := func() (map[string]int, error) {
					counts := map[string]int{}
					for range 6 {
						answer, err := pod.Client().Get("http://" + web.vip() + "/")
						if err != nil {
							return nil, err
						}
						who, err := io.ReadAll(answer.Body)
						answer.Body.Close()
						if err != nil {
							return nil, err
						}
						counts[string(who)]++
					}
					return counts, nil
				}
				write := func(annotations string) {
					writeFile(filepath.Join(dir, f.name+".yaml"), endpointsByHand(f.name, f.vip, annotations, good.addr, bad.addr))
				}
				both, one := map[string]int{good.addr.String(): 3, bad.addr.String(): 3}, map[string]int{good.addr.String(): 6}

				failed := sample(l.Node.NewDialer(1), `usher_probes_total{result="bad-status"}`)
				alreadyFailed := 0.0
				if u != nil {
					alreadyFailed = failed()
				}
				bad.status.Store(http.StatusServiceUnavailable)
				write(`usher.io/probe: "http:/healthz", usher.io/probe-interval: 1s, usher.io/probe-rise: "2", usher.io/probe-fall: "2"`)
				if u == nil {
					u = startUsher(l.Node, dir, "--portal="+portal, "--trace", longDials)
				}
				Eventually(u.Out).WithTimeout(time.Minute).Should(gbytes.Say(`endpoint .*:8080 in quarantine \(2 probes failed: HTTP status 503\), next probe in 1.0 s`))
				before := bad.clients.Load()
				Expect(asked()).To(Equal(one))
				Expect(bad.clients.Load()).To(Equal(before))
				out, _, _ := askUsher(l.Node, "get", "endpoints", f.name)
				Expect(out).To(MatchRegexp(`quarantined .* probe (?:in \ds|now): \d+ probes failed: HTTP status 503`))

				bad.status.Store(http.StatusNoContent)
				Eventually(u.Out).WithTimeout(time.Minute).Should(gbytes.Say(`endpoint .*:8080 recovered: its probes succeed`))
				Expect(asked()).To(Equal(both))

				By("disabling the probes")
				bad.status.Store(http.StatusServiceUnavailable)
				Eventually(u.Out).WithTimeout(time.Minute).Should(gbytes.Say(`2 probes failed`))
				write("")
				Eventually(u.Out).WithTimeout(time.Minute).Should(gbytes.Say(`endpoint .*:8080 is no longer in quarantine: probes disabled`))
				Expect(asked()).To(Equal(both))
				Eventually(failed).WithTimeout(30 * time.Second).Should(BeNumerically(">=", alreadyFailed+4))
			}
		})
	}
})
