package balance_test

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/balance"
)

// The caller chooses an endpoint for a connection and reports how the attempt ended. A failed endpoint is skipped
// while another one is available.
func Example() {
	endpoints := []config.Endpoint{
		{Addr: netip.MustParseAddrPort("10.1.0.7:8080")},
		{Addr: netip.MustParseAddrPort("10.1.0.8:8080")},
	}
	var pool balance.Pool
	pool.Update(config.ServicePort{Endpoints: endpoints, Cluster: endpoints}, time.Now())

	now := time.Now()
	first, _ := pool.Cluster.Pick(balance.Request{Now: now})
	policy := balance.Policy{First: 10 * time.Second, Max: time.Minute}
	first.Endpoint.Report(balance.Report{Kind: balance.ConnectFailed, Start: now, Now: now, Err: errors.New("connection refused")}, policy)

	others := 0
	for range 4 {
		next, _ := pool.Cluster.Pick(balance.Request{Now: now.Add(time.Second)})
		if next.Endpoint != first.Endpoint {
			next.Endpoint.Report(balance.Report{Kind: balance.Connected, Now: now}, policy)
			others++
		}
	}
	fmt.Println(others, "of 4 went to the other endpoint")

	health := first.Endpoint.Health(now.Add(time.Second))
	fmt.Println("failures:", health.Failures, "-", health.Err)

	// Output:
	// 4 of 4 went to the other endpoint
	// failures: 1 - connection refused
}
