package portforward

import (
	"errors"
	"testing"
)

func TestHungUpReportsALostConnectionDespiteUnreadData(t *testing.T) {
	c := &Conn{over: make(chan struct{}), first: []byte("unread")}
	if ended, err := c.HungUp(); ended || err != nil {
		t.Errorf("while it lasts: %v, %v", ended, err)
	}
	c.cause = errLost
	close(c.over)
	if ended, err := c.HungUp(); !ended || !errors.Is(err, errLost) {
		t.Errorf("when it was lost: %v, %v", ended, err)
	}
}
