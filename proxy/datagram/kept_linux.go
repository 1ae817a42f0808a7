package datagram

import (
	"iter"
	"time"
)

// kept are the last datagrams of a client that has no answer yet, to be sent again to the
// next endpoint. Of many that come before the first answer, the last ones matter.
type kept struct {
	datagrams [maxKept]keptDatagram
	count     int // so far; the next one goes to datagrams[count%maxKept]
}

type keptDatagram struct {
	data []byte
	at   time.Time // zero if there is none
}

const (
	// maxKept is how many datagrams a session keeps.
	maxKept = 8
	// keptTime is how long a datagram is worth sending again. A refusal comes
	// within a round trip.
	keptTime = time.Second
	// maxKeptBytes bounds the copies that one loop keeps. A datagram for which
	// there is no room is sent once.
	maxKeptBytes = 16 << 20
)

// keep keeps copies of count datagrams of the loop's batch.
func (k *kept) keep(lp *loop, at, count int) {
	now := lp.clock()
	for i := at + max(0, count-maxKept); i < at+count; i++ {
		d := &k.datagrams[k.count%maxKept]
		k.count++
		data := lp.in.Data(i)
		d.at = time.Time{}
		if more := len(data) - cap(d.data); more > 0 {
			if lp.kept+more > maxKeptBytes {
				continue
			}
			lp.kept -= cap(d.data)
			d.data = make([]byte, 0, len(data))
			lp.kept += cap(d.data)
		}
		d.data, d.at = append(d.data[:0], data...), now
	}
}

// all returns those that are worth sending again, the oldest first.
func (k *kept) all(now time.Time) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for i := range maxKept {
			d := &k.datagrams[(k.count+i)%maxKept]
			if !d.at.IsZero() && now.Sub(d.at) <= keptTime && !yield(d.data) {
				return
			}
		}
	}
}

// drop gives the room for the copies back.
func (k *kept) drop(lp *loop) {
	for i := range k.datagrams {
		lp.kept -= cap(k.datagrams[i].data)
	}
}
