package keeper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal/fdpass"
	"github.com/usherproxy/usher/portal/fdstore"
	"github.com/usherproxy/usher/proxy/forward"
)

// The keeper has copies of the sockets of open connections and passes them to the process that it starts after a crash.
// Package fdstore has the protocol.

// area has the connections that a process has saved, one per slot of a memory region that it shares with the keeper.
// Negative slots are pipes, which may hold bytes of those connections.
type area struct {
	id     uint64
	memory int // descriptor of that region
	saved  map[int]*saved
	// inherited is set after the process has exited, and announced when the next process knows the area. rest are the
	// slots that this process has not yet acknowledged, pipes first. The first sent of them are on their way: the next
	// request acknowledges them.
	inherited, announced bool
	rest                 []int
	sent                 int
}

// saved is a connection or a pipe.
type saved struct {
	text string // begins with the slot
	fds  [2]int
}

// channel returns the two ends of the socket over which a child saves its connections.
func channel() (ours, theirs int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	return fds[0], fds[1], os.NewSyscallError("socketpair", err)
}

// listenTo makes the loop call hearAll when the child has sent a packet.
func (k *keeper) listenTo(c *child) {
	if c.channel == 0 {
		return
	}
	c.over = watch(c.channel, k.sent, func() bool { return k.hearAll(c) })
}

// hangUp handles the last packets of a child that has exited, and closes the socket.
func (k *keeper) hangUp(c *child) {
	if c.channel == 0 {
		return
	}
	_ = unix.Shutdown(c.channel, unix.SHUT_RD) // packets in the queue can still be read
	for over := false; !over; {
		select {
		case hear := <-k.sent:
			hear()
		case <-c.over:
			over = true
		}
	}
	unix.Close(c.channel)
	c.channel = 0
}

// hearAll handles all packets that a child has sent on its socket. It reports whether the child's end is open.
func (k *keeper) hearAll(c *child) (open bool) {
	text := make([]byte, fdstore.MaxPacket)
	for {
		n, fds, err := fdpass.ReceiveOn(c.channel, text, 2*fdstore.SavedAtOnce)
		if errors.Is(err, unix.EAGAIN) {
			return true
		}
		if errors.Is(err, unix.ECONNRESET) { // reported once, if the child exited without reading all packets; its own packets follow
			continue
		}
		if truncated := err == fdpass.ErrTruncated; n == 0 || err != nil && !truncated {
			return false
		} else if truncated || !k.act(c, string(text[:n]), fds) {
			fdpass.Close(fds)
		}
	}
}

// act handles a packet, and reports whether the keeper keeps the descriptors.
func (k *keeper) act(c *child, text string, fds []int) (kept bool) {
	head, lines, _ := strings.Cut(text, "\n")
	words := strings.Fields(head)
	if len(words) == 0 {
		return false
	}
	switch words[0] {
	case fdstore.WordNext:
		k.answer(c)
	case fdstore.WordEnd:
		k.resetRest(c)
	}
	if len(words) < 2 {
		return false
	}
	id, err := strconv.ParseUint(words[1], 10, 64)
	if err != nil {
		return false
	}
	at := slices.IndexFunc(c.areas, func(a *area) bool { return a.id == id })
	switch {
	case words[0] == fdstore.WordArea && at < 0 && len(fds) == 1:
		c.areas = append(c.areas, &area{id: id, memory: fds[0], saved: map[int]*saved{}})
		return true
	case words[0] == fdstore.WordSave && at >= 0:
		return k.save(c.areas[at], lines, fds)
	case words[0] == fdstore.WordDrop && at >= 0:
		a := c.areas[at]
		for _, word := range words[2:] {
			if slot, err := strconv.Atoi(word); err == nil {
				k.discard(a, slot)
			}
		}
		if k.closeUnused(a) {
			c.areas = slices.Delete(c.areas, at, at+1)
		}
	}
	return false
}

// closeUnused closes an inherited area if it has no connections, and reports whether it did.
func (k *keeper) closeUnused(a *area) bool {
	unused := a.inherited && a.isUnused()
	if unused {
		k.abandon([]*area{a})
	}
	return unused
}

// isUnused reports whether the area has no connections.
func (a *area) isUnused() bool {
	for slot := range a.saved {
		if slot > 0 {
			return false
		}
	}
	return true
}

// save keeps connections and pipes: one line and one pair of descriptors each. It reports whether it owns the
// descriptors now.
func (k *keeper) save(a *area, lines string, fds []int) bool {
	all := slices.Collect(strings.Lines(lines))
	if 2*len(all) != len(fds) || k.full(len(fds), 0) {
		return false
	}
	for i, line := range all {
		number, _, _ := strings.Cut(line, " ")
		slot, err := strconv.Atoi(number)
		if err != nil {
			fdpass.Close(fds[2*i:][:2])
			continue
		}
		k.discard(a, slot) // normally, the slot is free
		a.saved[slot] = &saved{line, [2]int(fds[2*i:])}
		k.connections++
	}
	return true
}

// discard closes the keeper's copies of a connection's sockets, or of a pipe. The connection stays open if another
// process has its sockets.
func (k *keeper) discard(a *area, slot int) {
	if s := a.saved[slot]; s != nil {
		fdpass.Close(s.fds[:])
		delete(a.saved, slot)
		k.connections--
	}
}

// answer sends a child the next part of the areas of a process that crashed.
func (k *keeper) answer(c *child) {
	text, fds := fdstore.WordEnd, []int(nil)
	for _, a := range c.areas {
		a.rest, a.sent = a.rest[a.sent:], 0
	}
	// The latest area comes first. It holds the last assigned connection ID; the next process continues after that.
	for _, a := range slices.Backward(c.areas) {
		if a.inherited && !a.announced {
			a.announced = true
			text, fds = fmt.Sprintf("%s %d", fdstore.WordArea, a.id), []int{a.memory}
			break
		}
		var lines strings.Builder
		rest := a.rest
		for len(rest) > 0 && len(fds) < 2*fdstore.SavedAtOnce {
			s := a.saved[rest[0]]
			if s != nil && lines.Len()+len(s.text) > fdstore.MaxPacket-100 {
				break
			}
			if rest = rest[1:]; s != nil {
				lines.WriteString(s.text)
				fds = append(fds, s.fds[:]...)
			}
		}
		if lines.Len() > 0 {
			text = fmt.Sprintf("%s %d\n%s", fdstore.WordSave, a.id, lines.String())
			a.sent = len(a.rest) - len(rest)
			break
		}
	}
	if !k.say(c, text, fds...) {
		k.say(c, fdstore.WordEnd)
	}
}

// say sends a packet without blocking. If that fails, it resets the connections that the child has not received, and
// returns false. If the child has closed its end, perhaps by a crash, its successor may continue them.
//
// Each packet except [fdstore.WordMore] answers a request of the child, so the child's queue does not fill up.
func (k *keeper) say(c *child, text string, fds ...int) bool {
	err := fdpass.SendOn(c.channel, []byte(text), fds...)
	if err == nil || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		return true
	}
	k.Log.WithError(err).Warn("Cannot pass open connections to the new usher process; they will be reset")
	k.resetRest(c)
	return false
}

// resetRest resets the connections of crashed processes that a child has not acknowledged.
func (k *keeper) resetRest(c *child) {
	c.areas = slices.DeleteFunc(c.areas, func(a *area) bool {
		k.reset(a, a.rest)
		a.rest, a.sent = nil, 0
		return k.closeUnused(a)
	})
}

// assign transfers the areas of a child that has exited to another child.
func (k *keeper) assign(areas []*area, to *child) {
	for _, a := range areas {
		a.inherited, a.announced = true, false
		a.rest, a.sent = slices.Sorted(maps.Keys(a.saved)), 0
		if !k.closeUnused(a) {
			to.areas = append(to.areas, a)
		}
	}
}

// abandon resets saved connections that no process will continue.
func (k *keeper) abandon(areas []*area) {
	for _, a := range areas {
		k.reset(a, slices.Collect(maps.Keys(a.saved)))
		unix.Close(a.memory)
	}
}

// reset resets saved connections, and closes pipes. An ordinary close would look like the end of the data.
func (k *keeper) reset(a *area, slots []int) {
	for _, slot := range slots {
		if s := a.saved[slot]; s != nil && slot > 0 && !a.isOver(slot) {
			for _, fd := range s.fds {
				_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}) // fails only if the connection has ended
			}
		}
		k.discard(a, slot)
	}
}

// isOver reports whether a connection had ended when the process crashed.
func (a *area) isOver(slot int) bool {
	notes := make([]byte, 4)
	_, err := unix.Pread(a.memory, notes, int64(slot)*forward.SavedSize)
	return err == nil && binary.NativeEndian.Uint32(notes)&forward.SavedOver != 0
}

// inherit passes the areas of an exited child to another child, or, if that is nil, to the next one that starts.
func (k *keeper) inherit(from, to *child) {
	areas := from.areas
	from.areas = nil
	if to == nil {
		k.orphans = append(k.orphans, areas...)
	} else {
		before := len(to.areas)
		if k.assign(areas, to); len(to.areas) > before && to.channel > 0 {
			k.say(to, fdstore.WordMore)
		}
	}
}

// children returns the processes that the keeper has started and that have not exited.
func (k *keeper) children() []*child {
	return slices.DeleteFunc(append(slices.Clone(k.draining), k.current, k.next), func(c *child) bool { return c == nil })
}
