package modes_test

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/modes"
)

// The caller asks a portal where to listen for a VIP, and then passes the listener to the portal. Mode none changes
// nothing in the kernel, so that this runs everywhere. With the other modes, packets to the VIP arrive at the
// listener.
func Example() {
	ctx := context.Background()
	p, err := modes.New(ctx, "none", portal.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Remove(ctx)

	web := portal.Target{Protocol: portal.TCP, Addr: netip.MustParseAddr("10.96.0.10"), Port: 8080}
	var rules []portal.Rule
	for _, bind := range p.Listen("default/web", []portal.Target{web}) {
		// Here the caller opens a listener at bind.Addr or, if that is taken and bind.Preferred is set, at another
		// port.
		for _, target := range bind.Targets {
			fmt.Println(target, "on loopback:", bind.Addr.Addr().IsLoopback())
			rules = append(rules, portal.Rule{
				Target: target, Action: portal.Redirect, LocalPort: bind.Addr.Port(), Comment: "default/web:http",
			})
		}
	}
	fmt.Println("refused:", p.Apply(ctx, rules, nil).Refused)

	// Output:
	// 10.96.0.10:8080/tcp on loopback: true
	// refused: map[]
}
