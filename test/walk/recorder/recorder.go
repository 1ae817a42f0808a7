// Package recorder records function calls in order. Only functions that test/walk has
// rewritten call Enter; in any other build all recordings are empty.
package recorder

import (
	"bytes"
	"runtime"
	"sync"
	"sync/atomic"
)

// Event is the call or the return of a function.
type Event struct {
	Goroutine string
	Function  string // "proxy/proxy.go Proxy.Apply"
	Return    bool
}

var (
	on     atomic.Bool
	mu     sync.Mutex // guards events
	events []Event
)

// Start starts a recording.
func Start() {
	mu.Lock()
	defer mu.Unlock()
	events = nil
	on.Store(true)
}

// Stop ends the recording and returns it.
func Stop() []Event {
	mu.Lock()
	defer mu.Unlock()
	on.Store(false)
	return events
}

// Enter records the call of a function. The returned function records the return.
func Enter(function string) func() {
	if !on.Load() {
		return nothing
	}
	var stack [64]byte // "goroutine 18 [running]:"
	fields := bytes.Fields(stack[:runtime.Stack(stack[:], false)])
	goroutine := string(fields[1])
	add(Event{goroutine, function, false})
	return func() { add(Event{goroutine, function, true}) }
}

func nothing() {}

func add(e Event) {
	mu.Lock()
	defer mu.Unlock()
	if on.Load() {
		events = append(events, e)
	}
}
