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
	ID     uint64
	Memory int // descriptor of that region
	Saved  map[int]*saved
	// Inherited is set after the process has exited, and Announced when the next process knows the area. Rest are the
	// slots that this process has not yet acknowledged, pipes first. The first Sent of them are on their way: the next
	// request acknowledges them.
	Inherited, Announced bool
	Rest                 []int
	Sent                 int
}

// saved is a connection or a pipe.
type saved struct {
	Text string // begins with the slot
	FDs  [2]int
}

// channel returns the two ends of the socket over which a child saves its connections.
func channel() (ours, theirs int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	return fds[0], fds[1], os.NewSyscallError("socketpair", err)
}

// listenTo makes the loop call hearAll when the child has sent a packet.
func (k *keeper) listenTo(c *child) {
	if c.Channel == 0 {
		return
	}
	c.over = watch(c.Channel, k.sent, func() bool { return k.hearAll(c) })
}

// hangUp handles the last packets of a child that has exited, and closes the socket.
func (k *keeper) hangUp(c *child) {
	if c.Channel == 0 {
		return
	}
	_ = unix.Shutdown(c.Channel, unix.SHUT_RD) // packets in the queue can still be read
	for over := false; !over; {
		select {
		case hear := <-k.sent:
			hear()
		case <-c.over:
			over = true
		}
	}
	unix.Close(c.Channel)
	c.Channel = 0
}

// hearAll handles all packets that a child has sent on its socket. It reports whether the child's end is open.
func (k *keeper) hearAll(c *child) (open bool) {
	text := make([]byte, fdstore.MaxPacket)
	for {
		n, fds, err := fdpass.ReceiveOn(c.Channel, text, 2*fdstore.SavedAtOnce)
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
	at := slices.IndexFunc(c.Areas, func(a *area) bool { return a.ID == id })
	switch {
	case words[0] == fdstore.WordArea && at < 0 && len(fds) == 1:
		c.Areas = append(c.Areas, &area{ID: id, Memory: fds[0], Saved: map[int]*saved{}})
		return true
	case words[0] == fdstore.WordSave && at >= 0:
		return k.save(c.Areas[at], lines, fds)
	case words[0] == fdstore.WordDrop && at >= 0:
		a := c.Areas[at]
		for _, word := range words[2:] {
			if slot, err := strconv.Atoi(word); err == nil {
				k.discard(a, slot)
			}
		}
		if k.closeUnused(a) {
			c.Areas = slices.Delete(c.Areas, at, at+1)
		}
	}
	return false
}

// closeUnused closes an inherited area if it has no connections, and reports whether it did.
func (k *keeper) closeUnused(a *area) bool {
	unused := a.Inherited && a.isUnused()
	if unused {
		k.abandon([]*area{a})
	}
	return unused
}

// isUnused reports whether the area has no connections.
func (a *area) isUnused() bool {
	for slot := range a.Saved {
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
		a.Saved[slot] = &saved{line, [2]int(fds[2*i:])}
		k.connections++
	}
	return true
}

// discard closes the keeper's copies of a connection's sockets, or of a pipe. The connection stays open if another
// process has its sockets.
func (k *keeper) discard(a *area, slot int) {
	if s := a.Saved[slot]; s != nil {
		fdpass.Close(s.FDs[:])
		delete(a.Saved, slot)
		k.connections--
	}
}

// answer sends a child the next part of the areas of a process that crashed.
func (k *keeper) answer(c *child) {
	text, fds := fdstore.WordEnd, []int(nil)
	for _, a := range c.Areas {
		a.Rest, a.Sent = a.Rest[a.Sent:], 0
	}
	// The latest area comes first. It holds the last assigned connection ID; the next process continues after that.
	for _, a := range slices.Backward(c.Areas) {
		if a.Inherited && !a.Announced {
			a.Announced = true
			text, fds = fmt.Sprintf("%s %d", fdstore.WordArea, a.ID), []int{a.Memory}
			break
		}
		var lines strings.Builder
		rest := a.Rest
		for len(rest) > 0 && len(fds) < 2*fdstore.SavedAtOnce {
			s := a.Saved[rest[0]]
			if s != nil && lines.Len()+len(s.Text) > fdstore.MaxPacket-100 {
				break
			}
			if rest = rest[1:]; s != nil {
				lines.WriteString(s.Text)
				fds = append(fds, s.FDs[:]...)
			}
		}
		if lines.Len() > 0 {
			text = fmt.Sprintf("%s %d\n%s", fdstore.WordSave, a.ID, lines.String())
			a.Sent = len(a.Rest) - len(rest)
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
	err := fdpass.SendOn(c.Channel, []byte(text), fds...)
	if err == nil || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		return true
	}
	k.Log.WithError(err).Warn("Cannot pass open connections to the new usher process; they will be reset")
	k.resetRest(c)
	return false
}

// resetRest resets the connections of crashed processes that a child has not acknowledged.
func (k *keeper) resetRest(c *child) {
	c.Areas = slices.DeleteFunc(c.Areas, func(a *area) bool {
		k.reset(a, a.Rest)
		a.Rest, a.Sent = nil, 0
		return k.closeUnused(a)
	})
}

// bequeath transfers the areas of a child that has exited to another child.
func (k *keeper) bequeath(areas []*area, to *child) {
	for _, a := range areas {
		a.Inherited, a.Announced = true, false
		a.Rest, a.Sent = slices.Sorted(maps.Keys(a.Saved)), 0
		if !k.closeUnused(a) {
			to.Areas = append(to.Areas, a)
		}
	}
}

// abandon resets saved connections that no process will continue.
func (k *keeper) abandon(areas []*area) {
	for _, a := range areas {
		k.reset(a, slices.Collect(maps.Keys(a.Saved)))
		unix.Close(a.Memory)
	}
}

// reset resets saved connections, and closes pipes. An ordinary close would look like the end of the data.
func (k *keeper) reset(a *area, slots []int) {
	for _, slot := range slots {
		if s := a.Saved[slot]; s != nil && slot > 0 && !a.isOver(slot) {
			for _, fd := range s.FDs {
				_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}) // fails only if the connection has ended
			}
		}
		k.discard(a, slot)
	}
}

// isOver reports whether a connection had ended when the process crashed.
func (a *area) isOver(slot int) bool {
	notes := make([]byte, 4)
	_, err := unix.Pread(a.Memory, notes, int64(slot)*forward.SavedSize)
	return err == nil && binary.NativeEndian.Uint32(notes)&forward.SavedOver != 0
}

// inherit passes the areas of an exited child to another child, or, if that is nil, to the next one that starts.
func (k *keeper) inherit(from, to *child) {
	areas := from.Areas
	from.Areas = nil
	if to == nil {
		k.Orphans = append(k.Orphans, areas...)
	} else {
		before := len(to.Areas)
		if k.bequeath(areas, to); len(to.Areas) > before && to.Channel > 0 {
			k.say(to, fdstore.WordMore)
		}
	}
}

// children returns the processes that the keeper has started and that have not exited.
func (k *keeper) children() []*child {
	return slices.DeleteFunc(append(slices.Clone(k.Draining), k.Current, k.Next), func(c *child) bool { return c == nil })
}
