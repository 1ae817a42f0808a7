package forward

import (
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	// spliceAfter is after how many full buffers in a row a pipe takes over.
	spliceAfter = 2
	// spliceWorth is what a pipe must have moved by the time that the stream
	// pauses, to be used again when it goes on.
	spliceWorth = 4 * bufferSize
	// pipeSize is what an unprivileged process may have (pipe(7)).
	pipeSize = 1 << 20
	// keptPipes is how many pipes a loop keeps for the next stream. Empty ones
	// take little memory, but descriptors.
	keptPipes = 4
)

// pipe is a pipe(2) on the way between two sockets.
type pipe struct {
	read, write int
	size        int
	held        int    // bytes in it
	moved       int    // since a pair got it
	number      uint16 // see Loop.SavePipes
}

// splice moves what the pipe can take from one socket to the other, and returns
// how much the other has taken: 0 if there is nothing to do before the kernel tells
// of a change. A stream that pauses gives the pipe back.
func (p *pair) splice(w *way, from, to *edge) int {
	if w.pipe == nil {
		if !from.readable || !to.writable {
			return 0
		}
		if w.pipe = p.loop.pipes.get(); w.pipe == nil {
			return p.copy(w, from, to)
		}
	}
	if p.saved != nil && (w.pipe.number == 0 || !p.saved.own) {
		p.noteMoving(w)
	}
	if from.readable && w.pipe.held < w.pipe.size {
		p.fill(w, from, to)
	}
	switch {
	case w.ended || p.done == nil:
		return 0
	case w.pipe == nil: // there is nothing more, or it cannot be spliced
		return p.copy(w, from, to)
	}
	n := p.drain(w, to)
	if w.pipe != nil && w.pipe.held == 0 && !from.readable {
		p.pause(w)
	}
	return n
}

// fill moves bytes into the pipe. If there are none, and it is empty, it is given
// back. Only a read shows why there are none: splice(2) does not pass an urgent byte,
// and returns there what it returns at the end of the stream if that has come, too.
func (p *pair) fill(w *way, from, to *edge) {
	n, err := splice(int(from.fd), w.pipe.write, w.pipe.size-w.pipe.held)
	switch {
	case err == unix.EAGAIN && w.pipe.held > 0:
		// Nothing to read, or no room: the kernel does not say which.
	case err == unix.EAGAIN || err == nil && n == 0 && w.pipe.held == 0:
		from.urgent = true
		p.pause(w)
	case (err == unix.EINVAL || err == unix.ENOSYS || err == unix.EPERM) && w.pipe.held == 0: // this kernel cannot do it with sockets, or a filter is before it
		p.pause(w)
		p.loop.pipes.max = 0
	case err != nil:
		p.readFailed(w, err)
	default:
		w.pipe.held += n
	}
}

// drain moves bytes out of the pipe, and returns how many.
func (p *pair) drain(w *way, to *edge) int {
	if !to.writable || w.pipe.held == 0 {
		return 0
	}
	to.undelay(w)
	n, err := splice(w.pipe.read, int(to.fd), w.pipe.held)
	switch {
	case err == unix.EAGAIN:
		p.awaitRoom(to)
		return 0
	case err != nil:
		p.writeFailed(w, to, err)
		return 0
	}
	w.pipe.held -= n
	w.pipe.moved += n
	w.bytes.Add(int64(n))
	return n
}

// pause gives the empty pipe back.
func (p *pair) pause(w *way) {
	if w.pipe.moved < spliceWorth {
		w.full = 0
	}
	p.loop.pipes.put(w.pipe)
	w.pipe = nil
}

// splice is splice(2) that does not wait. Go's scheduler is not told of it: it would
// take the processor away from the loop, and give it back, for each that takes more
// than 20 µs.
func splice(from, to, size int) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_SPLICE, uintptr(from), 0, uintptr(to), 0, uintptr(size), unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
			continue
		}
		return 0, errno
	}
}

// pipes are the pipes of a Loop.
type pipes struct {
	max  int
	all  []*pipe // that are open
	kept []*pipe
	over func(number uint16) // see Loop.SavePipes

	unknown atomic.Bool // some of all may have no number
}

// get returns an empty pipe, or nil if there is none to be had.
func (ps *pipes) get() *pipe {
	if n := len(ps.kept); n > 0 {
		p := ps.kept[n-1]
		ps.kept = ps.kept[:n-1]
		return p
	}
	if len(ps.all) >= ps.max {
		return nil
	}
	var fds [2]int
	if unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK) != nil {
		return nil
	}
	p := &pipe{read: fds[0], write: fds[1], size: 16 * unix.Getpagesize()} // the default, see pipe(7)
	if size, err := unix.FcntlInt(uintptr(p.read), unix.F_SETPIPE_SZ, pipeSize); err == nil {
		p.size = size
	}
	ps.add(p)
	return p
}

// adopt returns the pipe of a process that crashed; nil for nil.
func (ps *pipes) adopt(p *Pipe) *pipe {
	if p == nil {
		return nil
	}
	a := &pipe{read: p.Read, write: p.Write, size: p.Held, held: p.Held}
	if size, err := unix.FcntlInt(uintptr(p.Read), unix.F_GETPIPE_SZ, 0); err == nil {
		a.size = size
	}
	ps.add(a)
	return a
}

func (ps *pipes) add(p *pipe) {
	ps.all = append(ps.all, p)
	ps.unknown.Store(true)
}

// Pipe is a pipe of a process that crashed. It holds Held bytes.
type Pipe struct{ Read, Write, Held int }

// NewPipe returns the pipe with these descriptors, which belong to it, or nil if it is empty: then they are closed.
func NewPipe(read, write int) *Pipe {
	if held, err := unix.IoctlGetInt(read, unix.TIOCINQ); err == nil && held > 0 {
		return &Pipe{read, write, held}
	}
	unix.Close(read)
	unix.Close(write)
	return nil
}

// put takes a pipe back.
func (ps *pipes) put(p *pipe) {
	if p.held > 0 || len(ps.kept) >= keptPipes {
		ps.discard(p)
		return
	}
	p.moved = 0
	ps.kept = append(ps.kept, p)
}

func (ps *pipes) discard(p *pipe) {
	unix.Close(p.read)
	unix.Close(p.write)
	ps.all = slices.DeleteFunc(ps.all, func(a *pipe) bool { return a == p })
	if p.number != 0 {
		ps.over(p.number)
	}
}

// close closes the pipes that are kept.
func (ps *pipes) close() {
	for _, p := range ps.kept {
		ps.discard(p)
	}
	ps.kept = nil
}
