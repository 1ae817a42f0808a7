package stream

import (
	"context"
	"syscall"
	"time"

	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/search"
)

// queue waits until the client, who is in line, is called, or for so long. The error says why it is
// in vain.
func (c *connection) queue(ctx context.Context, s *search.Search, d time.Duration) error {
	over, called := context.WithTimeout(ctx, d)
	defer called()
	left := make(chan struct{})
	defer c.mind(func() {
		close(left)
		called()
	})()
	s.WhenCalled(called)
	<-over.Done()
	select {
	case <-left:
		return search.ErrClientLeft
	default:
		return ctx.Err()
	}
}

// mind calls left if the client leaves before unmind is called, which returns when it will not be
// any more. Where the system does not tell, it is not called.
func (c *connection) mind(left func()) (unmind func()) {
	client, ok := c.client.(interface {
		SyscallConn() (syscall.RawConn, error)
		SetReadDeadline(time.Time) error
	})
	if !ok {
		return func() {}
	}
	raw, err := client.SyscallConn()
	if err != nil {
		return func() {}
	}
	k, tcp := c.client.(*keptClient)
	sent := tcp && len(k.kept) > 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		if forward.WaitLeft(raw, sent) {
			left()
		}
	}()
	return func() {
		_ = client.SetReadDeadline(time.Unix(1, 0)) // fails only if the client is gone
		<-done
		_ = client.SetReadDeadline(time.Time{})
	}
}
