package forward

import "time"

// alarm is a timer that lets a Loop do something. It is made when it is first
// needed, and then used again.
type alarm struct{ timer *time.Timer }

// set makes loop call f after d, instead of what was set before and has not come
// about. f is the same each time.
func (a *alarm) set(loop *Loop, d time.Duration, f func()) {
	if a.timer == nil {
		a.timer = time.AfterFunc(d, func() { _ = loop.Do(f) })
		return
	}
	a.timer.Reset(d)
}

func (a *alarm) stop() {
	if a.timer != nil {
		a.timer.Stop()
	}
}
