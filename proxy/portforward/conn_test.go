package portforward

import (
	"errors"
	"net"
	"testing"
	"time"

	"k8s.io/streaming/pkg/httpstream"
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

// stuck is a stream whose node does not read.
type stuck struct{ httpstream.Stream }

func (stuck) Write([]byte) (int, error) { select {} }

func TestCloseEndsAWriteThatTheNodeDoesNotRead(t *testing.T) {
	c := &Conn{data: stuck{}, over: make(chan struct{}), closed: make(chan struct{})}
	failed := make(chan error)
	go func() {
		_, err := c.Write([]byte("data"))
		failed <- err
	}()
	time.Sleep(10 * time.Millisecond)
	close(c.closed)
	select {
	case err := <-failed:
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("the write returned %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the write continues")
	}
}
