package forward

import (
	"sync/atomic"
	"unsafe"
)

// A pair survives a crash of this process if another process has copies of its sockets, and this process held no bytes
// of it. So before a saved pair reads, it sets a flag in memory that both processes share. It clears the flag when all
// bytes are written. If the flag is still set after a crash, bytes could be missing or duplicated, so the pair is
// reset. Bytes in the sockets survive, since the kernel holds them. Bytes in a pipe survive, too, if the other process
// has copies of the pipe: see Loop.SavePipes.

// SavedSize is the size of a pair's part of the shared memory, in bytes.
const SavedSize = 32

// Saved is a pair's part of the shared memory. Only the pair's loop writes to it; for a frozen pair, Forget does. After
// a crash, the loop of the process that continues the pair writes to it.
type Saved struct {
	notes                atomic.Uint32
	toEndpoint, toClient atomic.Int64  // bytes moved
	pipes                atomic.Uint32 // lower half: number of the pipe to the endpoint; upper half: to the client; 0 is none
	_                    [4]byte
}

// Flags in Saved.notes, the first 4 bytes.
const (
	heldForEndpoint = 1 << iota // bytes for the endpoint may be in this process
	heldForClient
	SavedOver     // no process may continue the pair from this Saved
	clientBegun   // the client's first byte has arrived
	endpointBegun // the endpoint's first byte has arrived
)

// SavedAt returns the nth part of memory, counted from 0. The length of memory must be a multiple of SavedSize, and
// memory must outlive the Saved.
func SavedAt(memory []byte, n int) *Saved {
	return (*Saved)(unsafe.Pointer(&memory[n*SavedSize : (n+1)*SavedSize][0]))
}

// Save makes the pair note its state in s from now on, instead of in its previous Saved. The loop calls the function
// released once, when the pair no longer needs s. Since another process may have copies of the sockets, the pair now
// shuts its connections down before it closes the sockets. Keep or Unsave must follow.
func (h *PairHere) Save(s *Saved, released func()) {
	p := (*pair)(h)
	p.saved, p.shared = &saved{Saved: s, released: released, own: true, before: p.saved}, true
	p.loop.saved.Add(1)
	s.notes.Store(0)
	p.noteHeld(&p.toEndpoint)
	p.noteHeld(&p.toClient)
}

// Keep completes Save once the other process has copies of the sockets.
func (h *PairHere) Keep() {
	if before := h.saved.before; before != nil {
		h.saved.before = nil
		before.end()
	}
}

// Unsave undoes Save: the pair notes its state in its previous Saved again, if it has one.
func (h *PairHere) Unsave() {
	new := h.saved
	h.saved = new.before
	h.loop.saved.Add(-1)
	new.end()
}

// Sockets returns the pair's sockets. The pair still owns them.
func (h *PairHere) Sockets() (client, endpoint Socket) { return h.client.fd, h.endpoint.fd }

// State returns the state from which another process can continue the pair if this process holds no bytes of it.
func (h *PairHere) State() PairState {
	p := (*pair)(h)
	s := PairState{
		ClientEdge: EdgeState{Delays: p.client.delays}, EndpointEdge: EdgeState{Delays: p.endpoint.delays},
		ToEndpoint: WayState{Preface: p.toEndpoint.preface}, Limits: *p.limits, Probed: p.probed,
	}
	if p.place > 0 {
		s.Watch.Start = p.loop.limited.pairs[p.place-1].watch.began
	}
	s.Ending, s.Errno, s.Half = p.ending.outcome.String(), p.ending.number, p.half
	return s
}

// IsSaved reports whether this process has saved the pair. It also returns true if the pair has ended.
func (h *PairHere) IsSaved() bool { return h.saved != nil && h.saved.own || h.owner == nil }

// saved is the state that only saved pairs have.
type saved struct {
	*Saved
	released func()
	own      bool   // saved by this process, not by one that crashed
	before   *saved // the previous state, until Keep or Unsave
}

func (s *saved) end() {
	s.notes.Store(SavedOver)
	s.released()
}

// forget records that no process may continue the saved pair from its Saved.
func (p *pair) forget() {
	s := p.saved
	p.saved = nil
	if s.own {
		p.loop.saved.Add(-1)
	}
	s.end()
}

// noteMoving notes that bytes of one direction are about to be read into this process.
func (p *pair) noteMoving(w *way) {
	note := uint32(heldForEndpoint)
	if w == &p.toClient {
		note = heldForClient
	}
	if notes := p.saved.notes.Load(); notes&note == 0 {
		p.saved.notes.Store(notes | note)
	}
}

// noteHeld notes the state of one direction: the byte count, the pipe, and whether this process holds bytes.
func (p *pair) noteHeld(w *way) {
	notes, note, begun, count, shift := p.saved.notes.Load(), uint32(heldForEndpoint), uint32(clientBegun), &p.saved.toEndpoint, 0
	if w == &p.toClient {
		note, begun, count, shift = heldForClient, endpointBegun, &p.saved.toClient, 16
	}
	count.Store(w.bytes.Load())
	pipe := uint32(0)
	if w.pipe != nil && p.saved.own {
		pipe = uint32(w.pipe.number)
	}
	if pipes := p.saved.pipes.Load(); pipes>>shift&0xffff != pipe {
		p.saved.pipes.Store(pipes&^(0xffff<<shift) | pipe<<shift)
	}
	if notes &^= note; w.rest != nil || w.pipe != nil && pipe == 0 || p.client.lost || p.endpoint.lost { // a lost socket reads as ended: another process would take the failure for a FIN
		notes |= note
	}
	if w.begun {
		notes |= begun
	}
	p.saved.notes.Store(notes)
}

// Over reports whether no process may continue the pair from s: it has ended, or its state is in another Saved.
func (s *Saved) Over() bool { return s.notes.Load()&SavedOver != 0 }

// Restored updates t, the state of a pair when it was saved, with the notes that the pair has made in s since then. s
// must not be Over. If whole is false, bytes may be lost, and the pair must be reset. toEndpoint and toClient are the
// numbers of the pipes that may hold bytes of that direction; 0 is none.
func (s *Saved) Restored(t *PairState) (whole bool, toEndpoint, toClient int) {
	notes := s.notes.Load()
	t.ToEndpoint.Bytes, t.ToClient.Bytes = s.toEndpoint.Load(), s.toClient.Load()
	t.ToEndpoint.Begun, t.ToClient.Begun = notes&clientBegun != 0, notes&endpointBegun != 0
	pipes := s.pipes.Load()
	return notes&(heldForEndpoint|heldForClient) == 0, int(pipes & 0xffff), int(pipes >> 16)
}

// SavePipes calls save for each pipe that the other process does not have. save sends the pipe and returns its number
// there, or 0 if that failed. From then on, the loop calls released with this number when it closes the pipe. Only the
// loop may call SavePipes.
func (l *Loop) SavePipes(save func(read, write int) (number uint16), released func(number uint16)) {
	l.pipes.released = released
	unknown := false
	for _, p := range l.pipes.all {
		if p.number == 0 {
			p.number = save(p.read, p.write)
			unknown = unknown || p.number == 0
		}
	}
	l.pipes.unknown.Store(unknown)
}

// Unsaved reports whether the loop has pairs or pipes that the other process may not have. Any goroutine may call it.
func (l *Loop) Unsaved() bool { return l.pairs.Load() > l.saved.Load() || l.pipes.unknown.Load() }

// Forget is called when another process continues the pair, which must be frozen. If the pair is saved, it no longer
// notes its state. Any goroutine may call Forget.
func (p *Pair) Forget() {
	if p.saved != nil {
		p.forget()
	}
}

// SavedHeader returns part 0 of memory as a number for the caller's use. No pair may use that part.
func SavedHeader(memory []byte) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&memory[0])) }

// Reset resets connections, even if other processes have copies of the sockets, and closes the sockets.
func Reset(sockets ...Socket) {
	for _, s := range sockets {
		_ = s.SetLinger(0) // fails only if the connection has ended
		s.disconnect()
		s.Close()
	}
}

var _ [SavedSize]byte = [unsafe.Sizeof(Saved{})]byte{}
