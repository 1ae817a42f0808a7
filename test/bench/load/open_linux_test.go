package load

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/netip"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/test/lab"
)

// stall is the time for which the tests' server stops answering, once.
const stall = 400 * time.Millisecond

// stallingServer echoes, except for a pause that begins half a second after its first byte.
func stallingServer(g *WithT, t *testing.T) netip.AddrPort {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { l.Close() })
	var began atomic.Int64
	lab.Serve(l, func(c net.Conn) {
		buffer := make([]byte, 64)
		for {
			if _, err := io.ReadFull(c, buffer); err != nil {
				return
			}
			began.CompareAndSwap(0, time.Now().UnixNano())
			since := time.Since(time.Unix(0, began.Load()))
			if pause := since - 500*time.Millisecond; pause > 0 && pause < stall {
				time.Sleep(stall - pause)
			}
			if _, err := c.Write(buffer); err != nil {
				return
			}
		}
	})
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func result(g *WithT, t *testing.T, spec Spec) (r Result) {
	processors := runtime.GOMAXPROCS(0)
	t.Cleanup(func() {
		runtime.GOMAXPROCS(processors)
		debug.SetGCPercent(100)
	})
	var out bytes.Buffer
	g.Expect(Run(spec, strings.NewReader(""), &out)).To(Succeed())
	_, answer, ok := strings.Cut(out.String(), Ended+" ")
	g.Expect(ok).To(BeTrue(), out.String())
	g.Expect(json.Unmarshal([]byte(answer), &r)).To(Succeed())
	return r
}

func TestOpenLoopMeasuresStallThatClosedLoopMisses(t *testing.T) {
	g := NewWithT(t)
	for _, kind := range []Kind{RR, CRR} {
		spec := Spec{Kind: kind, Clients: 4, Size: 64, Loops: 1, Warm: 100 * time.Millisecond, For: 1500 * time.Millisecond}
		spec.To = stallingServer(g, t)
		closed := result(g, t, spec)
		spec.To, spec.Rate = stallingServer(g, t), 1000
		open := result(g, t, spec)
		// The open loop sends no faster than the rate. Of 1,500 exchanges 400 were due during the stall; a
		// closed loop delays only four.
		g.Expect(closed.P99).To(BeNumerically("<", stall/2), string(kind))
		g.Expect(open.P99).To(BeNumerically(">", stall/2), string(kind))
		g.Expect(open.Done).To(BeNumerically("<=", 1600), string(kind)) // some that were due during the warm-up may end later
		g.Expect(open.Errors).To(BeZero())
	}
}

func TestStreamsKeepTheirRate(t *testing.T) {
	g := NewWithT(t)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { l.Close() })
	lab.Serve(l, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	spec := Spec{Kind: Stream, To: l.Addr().(*net.TCPAddr).AddrPort(), Clients: 4, Size: 64 << 10, Loops: 1, Rate: 50e6, Warm: 500 * time.Millisecond, For: 2 * time.Second}
	g.Expect(result(g, t, spec).Done).To(BeNumerically("~", 100e6, 20e6)) // without pacing a hundred times as much
}

func TestDatagramsRejectRate(t *testing.T) {
	g := NewWithT(t)
	spec := Spec{Kind: UDP, To: netip.MustParseAddrPort("127.0.0.1:1"), Clients: 1, Size: 64, Window: 1, Loops: 1, For: time.Second, Rate: 1}
	g.Expect(Run(spec, strings.NewReader(""), io.Discard)).To(MatchError(ContainSubstring("field Rate")))
}
