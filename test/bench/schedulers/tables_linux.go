package main

import (
	"errors"
	"fmt"
	"html"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/balance"
)

func title(name string) string {
	if slices.Contains(weighted, name) {
		return name + ", weights 10 and 1"
	}
	return name
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}

// printSpeeds prints the table of measurements.
func printSpeeds(results []result) {
	fmt.Println("| scheduler | the four fast endpoints | the slow one | connections a second | median | p99 |")
	fmt.Println("|---|---:|---:|---:|---:|---:|")
	for _, r := range results {
		var four []string
		for _, n := range r.counts[:endpoints-1] {
			four = append(four, fmt.Sprint(n))
		}
		fmt.Printf("| `%s`%s | %s | %d | %.0f | %s | %s |\n", r.name, strings.TrimPrefix(title(r.name), r.name), strings.Join(four, " "), r.counts[endpoints-1],
			connections/r.took.Seconds(), milliseconds(r.p50), milliseconds(r.p99))
	}
}

// printMoves prints the table of how 10,000 clients move when endpoints change.
func printMoves(names []string) {
	fmt.Println("| scheduler | ten endpoints: least and most | one added: it gets | and so many move | one removed: of the others' clients move | one dead: it gets | of the others' clients move |")
	fmt.Println("|---|---:|---:|---:|---:|---:|---:|")
	for _, name := range names {
		var by config.Scheduler
		if err := by.UnmarshalText([]byte(name)); err != nil {
			panic(err) // the name was measured, so it is valid
		}
		ten := after(by, 10, nil)
		added := after(by, 10, func(p *balance.Pool) { update(p, by, 11, -1) })
		removed := after(by, 10, func(p *balance.Pool) { update(p, by, 10, 3) })
		dead := after(by, 10, func(p *balance.Pool) {
			p.All[3].Report(balance.Report{Kind: balance.ConnectFailed, Start: now, Now: now, Err: errors.New("refused")}, balance.Policy{First: time.Hour, Max: time.Hour})
		})
		fmt.Printf("| `%s` | %d to %d | %d | %s | %s | %d | %s |\n", name, slices.Min(ten.counts[:10]), slices.Max(ten.counts[:10]),
			added.counts[10], added.moved(by), removed.moved(by), dead.counts[3], dead.moved(by))
	}
}

var now = time.Now()

// outcome is the distribution of 10,000 clients before and after a change, in which endpoint 3 leaves.
type outcome struct {
	counts        [11]int // after the change
	others, moves int     // clients whose endpoint was not 3, and those of them whose endpoint has changed
}

func (o outcome) moved(by config.Scheduler) string {
	if !slices.Contains([]config.Scheduler{config.SourceHash, config.DestinationHash, config.Maglev}, by) {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(o.moves)/float64(max(o.others, 1)))
}

func address(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), 80)
}

// update gives a pool n endpoints, except the one with index without.
func update(p *balance.Pool, by config.Scheduler, n, without int) {
	var list []config.Endpoint
	for i := range n {
		if i != without {
			list = append(list, config.Endpoint{Addr: address(i), Ready: true})
		}
	}
	p.Update(config.ServicePort{Policy: config.Policy{Scheduler: by}, Endpoints: list, Cluster: list}, time.Now())
}

// after sends 10,000 clients, whose connections stay open, before and after a change.
func after(by config.Scheduler, n int, change func(*balance.Pool)) (o outcome) {
	var p balance.Pool
	update(&p, by, n, -1)
	choose := func(client int) int {
		c, _ := p.Cluster.Pick(balance.Request{Now: now, Client: netip.AddrFrom4([4]byte{192, 0, byte(client >> 8), byte(client)}), VIP: netip.MustParseAddr("10.96.0.1")})
		c.Endpoint.Take()
		return int(c.Endpoint.Addr.Addr().As4()[3])
	}
	var before [connections]int
	for client := range connections {
		before[client] = choose(client)
	}
	if change != nil {
		for _, e := range p.All { // close all connections
			for e.Active.Load() > 0 {
				e.Release()
			}
		}
		change(&p)
	}
	for client := range connections {
		now := choose(client)
		o.counts[now]++
		if before[client] != 3 {
			o.others++
			if now != before[client] {
				o.moves++
			}
		}
	}
	return o
}

// Sizes in the picture, in pixels.
const (
	width, left, right = 720, 200, 600
	rowHeight, header  = 24, 52
)

// draw returns the picture: p99 for each scheduler.
func draw(results []result) string {
	most := time.Duration(1)
	for _, r := range results {
		most = max(most, r.p99)
	}
	height := header + rowHeight*len(results) + 10
	what := "99 of 100 clients have their answer after"
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d" role="img" aria-label="%s">
<style>
text { font: 13px system-ui, sans-serif; fill: #1f2328 } .title { font-weight: 600; font-size: 14px } .small { fill: #59636e }
.back { fill: #f6f8fa } .bar { fill: #1a7f64 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .small { fill: #9198a1 } .back { fill: #161b22 } .bar { fill: #2ea583 } }
</style>
<rect class="back" width="%[1]d" height="%[2]d" rx="6"/>
<text class="title" x="16" y="22">%[3]s</text>
<text class="small" x="16" y="40">five endpoints, one of them ten times slower</text>
`, width, height, html.EscapeString(what))
	for i, r := range results {
		y := header + i*rowHeight
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text><rect class="bar" x="%d" y="%d" width="%.1f" height="16" rx="2"/><text x="%d" y="%[2]d">%s</text>`+"\n",
			left-10, y+13, title(r.name), left, y, float64(right-left)*float64(r.p99)/float64(most), right+10, milliseconds(r.p99))
	}
	return b.String() + "</svg>\n"
}
