package admin

import (
	"time"

	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/admin/api"
)

// NodeProblems returns the problems of usher as a whole.
func (a *API) NodeProblems(s *proxy.Stats) []api.StatusProblem { return a.nodeProblems(s, time.Now()) }

// SetMaxUnread replaces the limit for bodies that are being written, in bytes.
func (a *API) SetMaxUnread(bytes int) { a.unread.limit = bytes }

// SetHeartbeat sets the heartbeat interval of streams that begin later, until the caller calls restore.
func SetHeartbeat(d time.Duration) (restore func()) {
	before := heartbeat
	heartbeat = d
	return func() { heartbeat = before }
}
