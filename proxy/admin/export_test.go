package admin

import "time"

// SetHeartbeat bounds how long streams that begin later are silent, until the function that it
// returns is called.
func SetHeartbeat(d time.Duration) (restore func()) {
	before := heartbeat
	heartbeat = d
	return func() { heartbeat = before }
}
