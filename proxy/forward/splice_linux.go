package forward

import (
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	// A direction uses a pipe after spliceAfter consecutive reads that filled the buffer.
	spliceAfter = 2
	// spliceWorth is a number of bytes. If a stream has moved at least as many through a pipe before a pause, it uses a
	// pipe again at once after the pause.
	spliceWorth = 4 * bufferSize
	// pipeSize is the size of a pipe: the default maximum for an unprivileged process (pipe(7)).
	pipeSize = 1 << 20
	// keptPipes is the maximum number of unused pipes that a loop keeps for the next streams. Empty pipes take little
	// memory, but two descriptors each.
	keptPipes = 4
)

// pipe is a pipe(2) through which splice(2) moves bytes from one socket to another.
type pipe struct {
	read, write int
	size        int
	held        int    // number of bytes in the pipe
	moved       int    // number of bytes moved through it since a pair got it
	number      uint16 // see Loop.SavePipes
}

// splice moves bytes from one socket through the pipe to the other. It returns the number of bytes that the other
// socket has accepted. With 0, there is nothing to do until the kernel reports a change. When the stream pauses, splice
// returns the pipe to the loop. If the loop has no pipe, splice does the same as copy.
func (p *pair) splice(w *way, from, to *edge) int {
	if w.pipe == nil {
		if !from.readable || !to.writable {
			return 0
		}
		if w.pipe = p.loop.pipes.get(); w.pipe == nil {
			return p.copy(w, from, to)
		}
		if p.saved != nil { // before the first byte: after a crash, bytes in a pipe that is not noted would be lost unnoticed
			p.noteHeld(w)
		}
	}
	if from.readable && w.pipe.held < w.pipe.size {
		p.fill(w, from, to)
	}
	switch {
	case w.ended || p.owner == nil:
		return 0
	case w.pipe == nil: // no more bytes, or splice(2) does not work
		return p.copy(w, from, to)
	}
	n := p.drain(w, to)
	if w.pipe != nil && w.pipe.held == 0 && !from.readable {
		p.pause(w)
	}
	return n
}

// fill moves bytes into the pipe. If there are none and the pipe is empty, fill returns the pipe to the loop, and copy
// must read to determine the reason. splice(2) does not show it. It stops at an urgent byte and, if that is the last of
// the stream, returns 0 although the byte is unread.
func (p *pair) fill(w *way, from, to *edge) {
	n, err := splice(int(from.fd), w.pipe.write, w.pipe.size-w.pipe.held)
	switch {
	case err == unix.EAGAIN && w.pipe.held > 0:
		// There is nothing to read, or the pipe is full: the kernel does not report which.
	case err == unix.EAGAIN || err == nil && n == 0 && w.pipe.held == 0:
		from.urgent = true
		p.pause(w)
	case unsupported(err):
		p.loop.pipes.max = 0
		if w.pipe.held == 0 { // otherwise drain handles that
			p.pause(w)
		}
	case err != nil:
		p.readFailed(w, err)
	default:
		w.pipe.held += n
	}
}

// unsupported reports whether err means that this kernel does not support splice(2) for sockets, or that a filter
// blocks it.
func unsupported(err error) bool {
	return err == unix.EINVAL || err == unix.ENOSYS || err == unix.EPERM
}

// drain moves bytes from w's pipe to its destination, and returns their number. If splice(2) does not work, it moves the
// bytes from the pipe into memory, and w has no pipe afterwards.
func (p *pair) drain(w *way, to *edge) int {
	if !to.writable || w.pipe.held == 0 {
		return 0
	}
	to.undelay(w)
	n, err := splice(w.pipe.read, int(to.fd), w.pipe.held)
	if unsupported(err) {
		if p.saved != nil {
			p.noteMoving(w)
		}
		if b, ok := w.pipe.take(); ok { // they were put there by hold
			p.loop.pipes.max = 0
			p.pause(w)
			w.keep(b, 0)
			return p.writeRest(w, to)
		}
	}
	switch {
	case err == unix.EAGAIN:
		p.awaitWritable(to)
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

// pause returns the empty pipe to the loop. See spliceWorth.
func (p *pair) pause(w *way) {
	if w.pipe.moved < spliceWorth {
		w.full = 0
	}
	p.loop.pipes.put(w.pipe)
	w.pipe = nil
}

// splice is splice(2) without waiting, as a raw system call: Go's scheduler does not know of it. Otherwise the
// scheduler would take the CPU from the loop during each call that takes more than 20 µs.
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
	max      int
	all      []*pipe             // open pipes
	kept     []*pipe             // the unused ones among them
	released func(number uint16) // see Loop.SavePipes

	unknown atomic.Bool // some open pipes may have no number
}

// get returns an empty pipe, or nil if the maximum is reached, or is 0, or the kernel provides none.
func (ps *pipes) get() *pipe {
	if n := len(ps.kept); n > 0 && ps.max > 0 {
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

// hold returns a pipe with the bytes b, or nil if there is none for them. Clients that stop reading could keep such pipes
// for long, so half of the pipes remain for streams.
func (ps *pipes) hold(b []byte) *pipe {
	if len(ps.all) >= ps.max/2 {
		return nil
	}
	p := ps.get()
	if p == nil {
		return nil
	}
	n, _ := unix.Write(p.write, b)
	if p.held = max(n, 0); n == len(b) {
		return p
	}
	ps.put(p)
	return nil
}

// adopt takes over a pipe of a crashed process: it adds the pipe to ps and returns it. If the argument is nil, adopt
// returns nil.
func (ps *pipes) adopt(p *Pipe) *pipe {
	if p == nil {
		return nil
	}
	a := &pipe{read: p.Read, write: p.Write, size: p.Held, held: p.Held, moved: 1} // the crashed process may have moved some: see writeFailed
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

// Pipe is a pipe of a process that crashed: its two descriptors and the number of bytes in it.
type Pipe struct{ Read, Write, Held int }

// NewPipe returns the Pipe with these descriptors, and owns them. If the pipe is empty, it closes them and returns nil.
func NewPipe(read, write int) *Pipe {
	if held, err := unix.IoctlGetInt(read, unix.TIOCINQ); err == nil && held > 0 {
		return &Pipe{read, write, held}
	}
	unix.Close(read)
	unix.Close(write)
	return nil
}

// put returns a pipe to ps, which closes it if it is not empty or enough are kept.
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
		ps.released(p.number)
	}
}

// close closes the unused pipes.
func (ps *pipes) close() {
	for _, p := range ps.kept {
		ps.discard(p)
	}
	ps.kept = nil
}
