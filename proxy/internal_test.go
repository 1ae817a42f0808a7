package proxy

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
)

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
