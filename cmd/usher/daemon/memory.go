package daemon

import (
	"os"
	"runtime"
	"runtime/debug"
	"time"
)

const (
	// manyServices is the number of Services from which on memory is released after a change.
	manyServices = 1000
	// largeHeap is the heap size from which the garbage collector starts after growth of
	// largeHeapGrowth percent instead of 100. With ten thousand Services most of the heap
	// lives as long as they do: 110 MiB in use would take up 250. A smaller heap keeps the
	// default, since it would be collected too often.
	largeHeap       = 64 << 20
	largeHeapGrowth = 40
	// growthAtStart is the percentage by which the heap may grow until the first Services
	// are served. Frequent collections take time: 40 cost a third more than 150. But
	// long-lived objects are allocated between short-lived ones, and Go does not move
	// objects: with 150, 75 MiB of 205 stayed holes for good, with 80 it is 45 of 175.
	growthAtStart = 80
	// tidyAfter is the delay after a change before memory is released.
	tidyAfter = time.Second
)

// hurry lets the heap grow by growthAtStart until tidyMemory has run.
func hurry() { setGrowth(growthAtStart) }

// setGrowth sets the percentage by which the heap may grow before a collection, unless the
// user has set GOGC.
func setGrowth(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

// tidyMemory releases the memory that reading many Services needed, several times the
// amount in use afterwards, in one step instead of over minutes. It waits until the portal
// has verified its own changes, since a list of the kernel's rules would otherwise
// stay in memory.
func tidyMemory() { time.AfterFunc(tidyAfter, giveBack) }

func giveBack() {
	debug.FreeOSMemory()
	var now runtime.MemStats
	runtime.ReadMemStats(&now)
	growth := 100 // Go's default
	if now.HeapAlloc > largeHeap {
		growth = largeHeapGrowth
	}
	setGrowth(growth)
}
