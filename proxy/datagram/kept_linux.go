package datagram

import (
	"iter"
	"time"
)

// kept holds copies of the last datagrams of a client that has had no answer yet. They are sent again to the next
// endpoint. A later datagram replaces the oldest.
type kept struct {
	datagrams [maxKept]keptDatagram
	count     int // number so far; the next one is stored in datagrams[count%maxKept]
}

type keptDatagram struct {
	data []byte
	at   time.Time // zero if there is none
}

const (
	// maxKept is the number of datagrams that a session keeps.
	maxKept = 8
	// keptTime is the maximum age of a datagram to be sent again. An ICMP error arrives within a round trip. But if a
	// neighbor is not in its cache, the kernel looks for it for 3 s before it reports an error (arp(7): mcast_solicit
	// requests, retrans_time apart).
	keptTime = 5 * time.Second
	// maxKeptBytes limits the size of the copies that one loop keeps. A datagram beyond it is sent only once.
	maxKeptBytes = 16 << 20
)

// keep copies datagrams of the loop's batch: count of them, from index at on, but at most the last maxKept. The
// parameter now is their time of arrival.
func (k *kept) keep(lp *loop, now time.Time, at, count int) {
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

// all returns the datagrams that are young enough to be sent again, the oldest first.
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

// drop releases the copies.
func (k *kept) drop(lp *loop) {
	for i := range k.datagrams {
		lp.kept -= cap(k.datagrams[i].data)
	}
}
