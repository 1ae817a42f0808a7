package admin

import (
	"bytes"
	"net/http"
	"slices"
	"sync"
	"time"
)

// maxUnread is the memory for bodies that are being written, in bytes. Of all clients together, those that do not read
// keep at most this much, or one larger body. Bodies of up to sendBuffer do not count: the number of clients limits
// these.
const maxUnread = 64 << 20

// unread limits the memory of bodies that are being written. At the limit, a new body does not wait: it replaces the
// earliest ones, and the connections of their clients end.
type unread struct {
	limit int

	mu     sync.Mutex
	bytes  int
	bodies []*unreadBody // in order of arrival
}

type unreadBody struct {
	size  int
	abort func()
}

// write writes body to w.
func (u *unread) write(w http.ResponseWriter, body []byte) (int, error) {
	if len(body) <= sendBuffer {
		return w.Write(body)
	}
	b := &unreadBody{size: cap(body), abort: func() { _ = http.NewResponseController(w).SetWriteDeadline(time.Unix(1, 0)) }}
	u.mu.Lock()
	for len(u.bodies) > 0 && u.bytes+b.size > u.limit {
		u.bodies[0].abort()
		u.removeLocked(u.bodies[0])
	}
	u.bytes += b.size
	u.bodies = append(u.bodies, b)
	u.mu.Unlock()
	defer func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.removeLocked(b)
	}()
	return w.Write(body)
}

func (u *unread) removeLocked(b *unreadBody) {
	if i := slices.Index(u.bodies, b); i >= 0 {
		u.bodies = slices.Delete(u.bodies, i, i+1)
		u.bytes -= b.size
	}
}

// limited returns next with the limit for its bodies. next should write each body in one piece.
func (u *unread) limited(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(&bodyWriter{ResponseWriter: w, write: func(body []byte) (int, error) { return u.write(w, body) }}, r)
	})
}

// whole returns a handler that writes the bodies of next in one piece.
func whole(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body bytes.Buffer
		next.ServeHTTP(&bodyWriter{ResponseWriter: w, write: body.Write}, r)
		_, _ = w.Write(body.Bytes()) // the client may have disconnected
	})
}

// bodyWriter is a ResponseWriter whose body goes to write.
type bodyWriter struct {
	http.ResponseWriter
	write func([]byte) (int, error)
}

func (w *bodyWriter) Write(p []byte) (int, error) { return w.write(p) }
