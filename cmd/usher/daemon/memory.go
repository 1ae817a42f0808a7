package daemon

import (
	"os"
	"runtime"
	"runtime/debug"
	"time"
)

const (
	// manyServices is how large a change is after which memory is given back.
	manyServices = 1000
	// largeHeap is from when on the heap may grow by largeHeapGrowth percent only,
	// and not to twice of what is in use, until it is collected. With ten thousand
	// Services most of it lasts as long as they do: 110 MiB that are in use would
	// take 250. A small heap is left alone, since it would be collected too often.
	largeHeap       = 64 << 20
	largeHeapGrowth = 40
	// growthAtStart is by how much percent the heap may grow until the first
	// Services are served. To look through it again and again takes time: 40 cost a
	// third more than 150. But what stays is allocated between what does not, and Go
	// moves nothing: with 150, 75 MiB of 205 were holes for good, with 80 it is 45 of 175.
	growthAtStart = 80
	// tidyAfter is how long after a change memory is given back.
	tidyAfter = time.Second
)

// hurry lets the heap grow until tidyMemory is called.
func hurry() { setGrowth(growthAtStart) }

// setGrowth says by how much percent the heap may grow until it is collected, if
// whoever runs usher has not decided it.
func setGrowth(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

// tidyMemory gives back what was needed to read many Services, several times of
// what is in use from now on, at once and not over the next minutes: as soon as the
// portal has looked at its own changes, since a list of what is in the kernel would
// stay as long as anything else.
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
