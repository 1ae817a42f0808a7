package proxy

import (
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/datagram"
	"github.com/usherproxy/usher/proxy/frontend"
)

// TestInheritNamespace expects that a proxy without a network namespace ignores the sockets in its predecessor's.
func TestInheritNamespace(t *testing.T) {
	g := NewWithT(t)
	sockets := map[string]*os.File{}
	for _, name := range []string{"tcp 10.96.0.10:80", "tcp 10.96.0.10:80 in " + namespaceName, namespaceName} {
		file, err := os.Open(os.DevNull)
		g.Expect(err).NotTo(HaveOccurred())
		defer file.Close()
		sockets[name] = file
	}
	p := &Proxy{node: &frontend.Node{}, datagrams: datagram.New(nil, nil, 0)}
	p.Inherit(sockets)
	g.Expect(p.node.Inherited).To(And(HaveLen(1), HaveKey("tcp 10.96.0.10:80")))
}

func TestChangeThatWaitsForACheckStaysPending(t *testing.T) {
	g := NewWithT(t)
	began := time.Now()
	var s SyncStatus
	s.queued(began.Add(time.Second))
	s.applied(began, began.Add(2*time.Second), &portal.Result{})
	g.Expect(s.Pending).To(Equal(began.Add(time.Second)))
	s.applied(began.Add(3*time.Second), began.Add(4*time.Second), &portal.Result{})
	g.Expect(s.Pending).To(BeZero())
	g.Expect(s.Of(config.IPv6)).To(Equal(FamilySync{LastApplied: began.Add(4 * time.Second)}))
}
