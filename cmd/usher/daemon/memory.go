package daemon

import (
	"os"
	"runtime"
	"runtime/debug"
	"time"
)

const (
	// manyServices is the minimum number of Services in a change for which memory is released afterwards.
	manyServices = 1000
	// With more than largeHeap bytes in use, a garbage collection starts after the heap has grown by largeHeapGrowth
	// percent instead of 100. With 10,000 Services most of the heap is long-lived: with 100 percent, 110 MiB in use
	// would occupy 250 MiB. A smaller heap keeps the default, since it would be collected too often.
	largeHeap       = 64 << 20
	largeHeapGrowth = 40
	// growthAtStart is the percentage by which the heap may grow until the first Services are served. A lower
	// percentage takes more CPU time: 40 took a third more than 150. A higher one leaves more fragmentation, because Go
	// does not move objects: with 150, 75 of 205 MiB stayed unusable; with 80, 45 of 175 MiB.
	growthAtStart = 80
	// tidyAfter is the delay after a change before memory is released.
	tidyAfter = time.Second
)

// setGrowth sets the percentage by which the heap may grow before a collection, unless the user has set GOGC.
func setGrowth(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

// tidyMemory schedules the release of the memory that was needed to read many Services: several times the amount in use
// afterwards. Without it, the release would take minutes. It happens after tidyAfter, when the portal has verified its
// changes and no longer holds a list of the kernel's rules.
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
