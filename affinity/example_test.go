package affinity_test

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/usherproxy/usher/affinity"
)

// A client keeps its endpoint for the timeout after its last new connection, or until the endpoint fails.
func Example() {
	limits := &affinity.Limits{PerTable: 1000, Total: 100_000}
	table := affinity.NewTable(limits, 3*time.Hour)

	client := netip.MustParseAddr("192.0.2.1")
	endpoint := netip.MustParseAddrPort("10.1.0.7:8080")
	noon := time.Date(2026, time.January, 1, 12, 0, 0, 0, time.UTC)

	table.Set(client, endpoint, noon)
	fmt.Println(table.Get(client, noon.Add(time.Hour)))
	_, known := table.Get(client, noon.Add(3*time.Hour))
	fmt.Println("after three hours:", known)

	table.Set(client, endpoint, noon)
	table.Forget(client, endpoint)
	_, known = table.Get(client, noon)
	fmt.Println("after the endpoint failed:", known)

	// Output:
	// 10.1.0.7:8080 true
	// after three hours: false
	// after the endpoint failed: false
}
