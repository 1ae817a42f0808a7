//go:build !386

package sctp

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/proxy/forward"
)

func TestLargeMessagesHaveALimitInTotal(t *testing.T) {
	g := NewWithT(t)
	var held []*forward.Message
	for {
		m := messages.Get().(*forward.Message)
		held = append(held, m)
		var err error
		for err == nil && cap(m.Data) < MaxMessage {
			m.Data = m.Data[:cap(m.Data)]
			err = grow(m)
		}
		if err != nil {
			g.Expect(err).To(MatchError(errTooManyLarge))
			break
		}
	}
	g.Expect(len(held)).To(BeNumerically("~", maxLarge/MaxMessage, 1))
	for _, m := range held {
		release(m)
	}
	g.Expect(large.Load()).To(BeZero())
	m := &forward.Message{Data: make([]byte, MaxMessage+1)}
	g.Expect(grow(m)).To(MatchError(errTooLarge))
}
