package main

import (
	"os"
	"runtime"
	"runtime/debug"
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
)

// tidyMemory gives back what was needed to read many Services, several times of
// what is in use from now on, at once and not over the next minutes.
func tidyMemory() {
	debug.FreeOSMemory()
	if os.Getenv("GOGC") != "" {
		return // whoever runs usher has decided
	}
	var now runtime.MemStats
	runtime.ReadMemStats(&now)
	growth := 100 // Go's default
	if now.HeapAlloc > largeHeap {
		growth = largeHeapGrowth
	}
	debug.SetGCPercent(growth)
}
