package top_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/cmd/kubectl-usher/top"
	"github.com/usherproxy/usher/proxy/admin/api"
)

var update = flag.Bool("update", false, "write testdata/screens anew")

// busy returns an usher instance with n Services that have names of maximum length, and much traffic.
func busy(n int) *usher {
	u := newUsher()
	u.services = nil
	u.status.Services, u.status.Problems, u.status.Attention = n, make([]api.StatusProblem, n/15), "no problems"
	if n >= 15 {
		u.status.Attention = fmt.Sprintf("%d Services need attention: department-of-payments-and-invoices-of-the-whole-company-europe/checkout", n/15)
	}
	states := []api.ServiceState{api.ServiceOK, api.ServiceDegraded, api.ServiceNoLocalEndpoints, api.ServiceNoLocalEndpointsExternal}
	for i := range n {
		u.services = append(u.services, api.Service{
			Namespace: "department-of-payments-and-invoices-of-the-whole-company-europe",
			Name:      fmt.Sprintf("checkout-service-with-a-name-that-is-as-long-as-it-may-be-n-%03d", i), State: states[i%len(states)],
			Endpoints: api.EndpointCounts{Total: 120 + i, Ready: 100 + i},
			Latency:   &api.Latency{ConnectP50Ms: 0.24, ConnectP99Ms: 253, FirstByteP50Ms: 123, FirstByteP99Ms: 987},
			Totals:    api.Totals{Active: 98765, Accepted: 123456789, Retries: 76543, Failed: 54321, BytesToEndpoint: 1e13, BytesToClient: 7e14},
		})
	}
	if n == 0 {
		u.connections = nil
		return u
	}
	u.status.Totals = u.services[0].Totals
	u.status.Connections, u.status.UDPSessions = api.Limited{Now: 98765, Limit: 500000}, api.Limited{Now: 4321, Limit: 65536}
	pod := u.services[0].Namespace + "/" + u.services[0].Name
	first := u.connections[0]
	u.connections = nil
	for i := range min(n, 100) {
		c := first
		c.ID, c.Service, c.Protocol, c.VIP = uint64(1234567890+i), pod, "TCP", "[fd00:10:96:1111:2222:3333:4444:5555]:65535"
		c.Client, c.Endpoint, c.Pod = fmt.Sprintf("[fd00:10:244:1111:2222:3333:4444:%d]:48201", 1000+i), "[fd00:10:244:1111:2222:3333:4444:6666]:65535", pod
		if i%2 == 0 {
			c.Client, c.Endpoint = "192.168.100.200:48201", "192.168.200.100:65535"
		}
		c.BytesToEndpoint, c.BytesToClient, c.DurationMs = 123456789, 9876543210, 252
		attempt := api.Attempt{Number: 1, Endpoint: c.Endpoint, Pod: pod, Reason: "round robin", Skipped: 119, DurationMs: 250, Result: "no-answer", Error: "no answer"}
		c.Attempts = []api.Attempt{attempt, {Number: 2, Endpoint: c.Endpoint, Pod: pod, Reason: "only one left", StartMs: 250, DurationMs: 2, Result: "connected"}}
		u.connections = append(u.connections, c)
	}
	return u
}

// goesOn adds ten seconds of heavy traffic.
func (u *usher) goesOn() {
	time.Sleep(10 * time.Second)
	more := api.Totals{Accepted: 123456, Retries: 7654, Failed: 5432, BytesToClient: 9e9}
	for i := range u.services {
		t := &u.services[i].Totals
		t.Accepted, t.Retries, t.Failed, t.BytesToClient = t.Accepted+more.Accepted, t.Retries+more.Retries, t.Failed+more.Failed, t.BytesToClient+more.BytesToClient
	}
	if len(u.services) > 0 {
		u.status.Totals = u.services[0].Totals
	}
}

// TestScreens compares screens with the reviewed ones in testdata/screens. Rewrite them with: go test
// ./cmd/kubectl-usher/top -run Screens -update
func TestScreens(t *testing.T) {
	for _, width := range []int{80, 120} {
		for _, n := range []int{0, 10, 500} {
			name := fmt.Sprintf("%d-columns-%d-services.txt", width, n)
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					compareScreens(NewWithT(t), filepath.Join("testdata", "screens", name), busy(n), width)
				})
			})
		}
	}
}

func compareScreens(g Gomega, golden string, u *usher, width int) {
	p := &person{top.New(context.Background(), u, top.Options{Interval: time.Second})}
	p.happens(tea.WindowSizeMsg{Width: width, Height: 14})
	p.asks()
	u.goesOn()
	p.asks()
	var screens strings.Builder
	look := func(keys ...string) {
		p.press(keys...)
		for _, line := range p.sees() {
			g.Expect(ansi.StringWidth(line)).To(BeNumerically("<=", width), line)
			g.Expect(line).NotTo(Or(MatchRegexp(`\d…`), MatchRegexp(`…\d`)), "a number is cut")
			fmt.Fprintln(&screens, line)
		}
		screens.WriteString(strings.Repeat("-", width) + "\n")
	}
	look()
	look("enter")
	look("esc", "c")
	look("enter")
	if *update {
		g.Expect(os.WriteFile(golden, []byte(screens.String()), 0o644)).To(Succeed())
	}
	want, err := os.ReadFile(golden)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(screens.String()).To(Equal(string(want)))
}
