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
	k, tcp := c.client.(*keptClient)
	sent := tcp && len(k.kept) > 0
	return c.whileThere(ctx, errClientLeft, func(raw syscall.RawConn) bool { return forward.WaitLeft(raw, sent) }, func(ctx context.Context) error {
		over, called := context.WithTimeout(ctx, d)
		defer called()
		s.WhenCalled(called)
		<-over.Done()
		return ctx.Err()
	})
}

// unlessReset calls f with a context that also ends when the client resets the connection, and returns
// what f does, or that it did.
func (c *connection) unlessReset(ctx context.Context, f func(context.Context) error) error {
	return c.whileThere(ctx, errClientReset, forward.WaitReset, f)
}

// whileThere calls f with a context that also ends when wait, which is called with the client's socket,
// returns true: if f fails then, whileThere returns why. The client is not read meanwhile. For clients
// without a socket, and on systems that do not report it, the context is ctx.
func (c *connection) whileThere(ctx context.Context, why error, wait func(syscall.RawConn) bool, f func(context.Context) error) error {
	client, ok := c.client.(interface {
		SyscallConn() (syscall.RawConn, error)
		SetReadDeadline(time.Time) error
	})
	if !ok {
		return f(ctx)
	}
	raw, err := client.SyscallConn()
	if err != nil {
		return f(ctx)
	}
	there, left := context.WithCancelCause(ctx)
	defer left(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if wait(raw) {
			left(why)
		}
	}()
	err = f(there)
	_ = client.SetReadDeadline(time.Unix(1, 0)) // fails only if the client is gone
	<-done
	_ = client.SetReadDeadline(time.Time{})
	if err != nil && context.Cause(there) == why {
		return why
	}
	return err
}
