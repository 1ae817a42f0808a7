package admin

import "time"

// SetHeartbeat sets the heartbeat interval of streams that begin later, until the caller calls restore.
func SetHeartbeat(d time.Duration) (restore func()) {
	before := heartbeat
	heartbeat = d
	return func() { heartbeat = before }
}
