package dns

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
)

// tenThousand returns 10,000 Services with one cluster IP each.
func tenThousand() []config.Service {
	all := make([]config.Service, 10000)
	for i := range all {
		all[i] = config.Service{Name: types.NamespacedName{Namespace: "a", Name: fmt.Sprintf("s%d", i)}, Discovery: &config.Discovery{
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})},
			Ports:      []config.DiscoveryPort{{Name: "http", Protocol: config.TCP, Number: 80}},
		}}
	}
	return all
}

func BenchmarkAnswer(b *testing.B) {
	s, err := New(Options{})
	if err != nil {
		b.Fatal(err)
	}
	s.zone.apply(tenThousand(), time.Unix(0, 0))
	query := packed(b, new(dns.Msg).SetQuestion("s1234.a.svc.cluster.local.", dns.TypeA))
	b.ReportAllocs()
	for b.Loop() {
		e := s.begin(query)
		if len(s.end(e, e.room)) == 0 {
			b.Fatal("no answer")
		}
	}
}

// BenchmarkApply measures the update of one Service among 10,000.
func BenchmarkApply(b *testing.B) {
	s, err := New(Options{})
	if err != nil {
		b.Fatal(err)
	}
	all := tenThousand()
	s.zone.apply(all, time.Unix(0, 0))
	b.ReportAllocs()
	for b.Loop() {
		s.zone.apply(all[:1], time.Unix(0, 0))
	}
}
