package forward

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/proxy/outcome"
)

// A pair is handed over between two rounds of its loop. Freeze removes it from the loop, and returns its state with the
// bytes that were read and not written. Continue adds it to a loop, of this process or of another one that has copies
// of both sockets. In between no process reads, so no byte is lost or moved twice. Bytes and events from the peers stay
// in the sockets, and the kernel reports them to the loop that watches the sockets next. A process may keep its copies
// after a handover, even forever if it hangs. So after Continue, a pair ends with shutdown(2), or with a reset that
// takes effect even if there are copies.

// Frozen is a pair that no loop forwards.
type Frozen struct {
	PairState
	Owner Owner
	// Client and Endpoint are the pair's sockets. The caller owns them.
	Client, Endpoint Socket
	// If a process had saved the pair and crashed, Saved is where the pair noted its state, and the loop calls Over
	// once, when the pair no longer needs Saved. Otherwise both are nil: a pair that continues in the same process
	// stays saved without them.
	Saved *Saved
	Over  func()
	// ToEndpointPipe and ToClientPipe, unless they are nil, hold bytes of a pair that a crashed process had saved.
	ToEndpointPipe, ToClientPipe *Pipe
}

// PairState is the state from which a loop continues a pair. All but WayState.Rest is encoded as JSON.
type PairState struct {
	ClientEdge, EndpointEdge EdgeState
	ToEndpoint, ToClient     WayState
	Limits                   Limits
	Watch                    WatchState
	Ending                   string `json:",omitempty"` // the word for the outcome so far
	Errno                    uint16 `json:",omitempty"` // the error that belongs to Ending
	Half, Probed             bool   `json:",omitempty"`
}

// EdgeState has the events of one of a pair's sockets that the kernel does not report again. See edge.
type EdgeState struct {
	Ended, Lost, Delays bool `json:",omitempty"`
}

// WayState is the state of one of a pair's two directions. See way.
type WayState struct {
	Bytes        int64
	Preface      uint16 `json:",omitempty"`
	Begun, Ended bool   `json:",omitempty"`
	Rest         []byte `json:"-"`          // bytes read and not written; too large for JSON
	Flags        int    `json:",omitempty"` // for writing Rest
}

// WatchState is the watch of a pair, and whether bytes have moved since the last check. Start is zero for a pair that
// has had no limits so far.
type WatchState struct {
	Start, Silent time.Time `json:",omitzero"`
	Unsent        int       `json:",omitempty"`
	Moved         bool      `json:",omitempty"`
}

// PairsFrom calls f for each pair in up to slotsAtOnce slots of the loop, starting at slot. It stops if f returns
// false. next is the slot for the next call: that of the pair for which f returned false, or the first slot not
// visited. more is false if there are no more slots. f may freeze its pair. Only the loop may call PairsFrom.
func (l *Loop) PairsFrom(slot int, f func(*PairHere, Owner) bool) (next int, more bool) {
	for end := min(slot+slotsAtOnce, len(l.slots)); slot < end; slot++ {
		if e, is := l.slots[slot].handler.(*endpointEdge); is && !f((*PairHere)(e), e.owner) {
			return slot, true
		}
	}
	return slot, slot < len(l.slots)
}

// slotsAtOnce limits the time of PairsFrom to about 0.1 ms if f does nothing, since the loop serves no connection
// meanwhile.
const slotsAtOnce = 1024

// Freeze writes the bytes that the pair holds, as far as the sockets accept them, and removes the pair from the loop.
// The sockets stay open, but are not read. Calls of Break and Retire until Continue are ignored. Freeze returns nil if
// the pair has ended.
func (h *PairHere) Freeze() *Frozen {
	p := (*pair)(h)
	l := p.loop
	if p.owner == nil {
		return nil
	}
	if p.saved != nil { // from now on another process may own the pair: after a crash of this one, no third process may continue the pair
		p.noteMoving(&p.toEndpoint)
		p.noteMoving(&p.toClient)
	}
	toEndpoint, ok := p.empty(&p.toEndpoint, &p.endpoint)
	toClient, okToo := p.empty(&p.toClient, &p.client)
	if p.owner == nil {
		return nil
	}
	if !ok || !okToo { // bytes are lost: the peers must not consider the stream complete
		p.reset(outcome.Internal, unix.EIO)
		return nil
	}
	f := &Frozen{Owner: p.owner, Client: p.client.fd, Endpoint: p.endpoint.fd, PairState: PairState{
		ClientEdge: p.client.state(), EndpointEdge: p.endpoint.state(),
		ToEndpoint: toEndpoint, ToClient: toClient,
		Limits: *p.limits, Watch: WatchState{Moved: p.moved},
		Ending: p.ending.outcome.String(), Errno: p.ending.number, Half: p.half, Probed: p.probed,
	}}
	if p.place > 0 {
		w := l.limited.pairs[p.place-1].watch
		f.Watch.Start, f.Watch.Silent, f.Watch.Unsent = w.began, w.silent, w.unsent
		l.limited.remove(p)
	}
	l.Remove(p.client.watch)
	l.Remove(p.endpoint.watch)
	if p.owner = nil; l.pairs.Add(-1) == 0 {
		l.pipes.close()
	}
	return f
}

func (e *edge) state() EdgeState { return EdgeState{Ended: e.ended, Lost: e.lost, Delays: e.delays} }

// empty writes the bytes that w holds, as far as the destination accepts them. It removes the remaining bytes from w,
// and returns them with w's state. ok is false if these could not be read from a pipe.
func (p *pair) empty(w *way, to *edge) (s WayState, ok bool) {
	switch {
	case w.ended: // a write has failed; a second one would return EPIPE
	case w.rest != nil:
		p.writeRest(w, to)
	case w.pipe != nil:
		for w.pipe != nil && p.drain(w, to) > 0 { // until it moves nothing: if splice(2) moved some bytes, only the next call returns an error
		}
	}
	if p.owner == nil {
		return s, true
	}
	s = WayState{Bytes: w.bytes.Load(), Preface: w.preface, Begun: w.begun, Ended: w.ended}
	if w.rest != nil {
		s.Rest, s.Flags = w.rest.bytes, w.rest.flags
		w.written()
	}
	if w.pipe != nil {
		s.Rest, ok = w.pipe.take()
		p.loop.pipes.put(w.pipe)
		w.pipe = nil
		if !ok {
			return s, false
		}
	}
	if w.full = 0; s.Ended {
		s.Rest = nil // writing has failed
	}
	return s, true
}

// take reads all bytes of a pipe.
func (p *pipe) take() (b []byte, ok bool) {
	if p.held == 0 {
		return nil, true
	}
	b = make([]byte, p.held)
	for p.held > 0 {
		n, err := unix.Read(p.read, b[len(b)-p.held:])
		if err == unix.EINTR {
			continue
		}
		if n <= 0 { // the pipe holds less than was spliced into it
			return nil, false
		}
		p.held -= n
	}
	return b, true
}

// Known reports whether this version knows the outcome in s.Ending.
func (s *PairState) Known() bool {
	return outcome.Named(s.Ending).String() == s.Ending
}

// Continue makes the loop forward the frozen pair f. The parameter in points to a zero Pair, or to the Pair that was
// frozen on this loop. Only the loop may call Continue, which may call the owner's Ended before it returns. limits are
// those of f; many pairs may share them.
func (l *Loop) Continue(in *Pair, f *Frozen, limits *Limits) {
	p := &in.pair
	if p.loop == nil { // otherwise it is l already, and other goroutines may read it
		p.loop = l
	}
	p.limits, p.owner = limits, f.Owner
	p.client, p.endpoint = f.ClientEdge.edge(f.Client), f.EndpointEdge.edge(f.Endpoint)
	p.ending = errno{outcome.Named(f.Ending), f.Errno}
	if p.shared = true; f.Saved != nil {
		p.saved = &saved{Saved: f.Saved, released: f.Over}
	}
	p.half, p.probed, p.moved = f.Half, f.Probed, f.Watch.Moved
	p.toEndpoint.pipe, p.toClient.pipe = l.pipes.adopt(f.ToEndpointPipe), l.pipes.adopt(f.ToClientPipe)
	p.toEndpoint.continued(&f.ToEndpoint, &l.pipes)
	p.toClient.continued(&f.ToClient, &l.pipes)
	l.pairs.Add(1)
	if !p.watch(&p.client, (*clientEdge)(p)) || !p.watch(&p.endpoint, (*endpointEdge)(p)) {
		p.reset(outcome.Limit, unix.ENOMEM)
		return
	}
	if !p.probed && !l.unprobed.any {
		l.probeLater()
	}
	if limits.Idle > 0 || limits.Age > 0 || !limits.Retire.IsZero() || p.half && limits.HalfClosed > 0 {
		l.limited.add(p)
		if w := f.Watch; !w.Start.IsZero() {
			// now.Add gives these times a monotonic clock. After a crash, the silence is unknown, and begins now.
			here := &l.limited.pairs[p.place-1].watch
			now := here.silent
			here.began = now.Add(w.Start.Sub(now))
			if !w.Silent.IsZero() {
				here.silent, here.unsent = now.Add(w.Silent.Sub(now)), w.Unsent
			}
		}
	}
	if p.saved != nil {
		p.noteHeld(&p.toEndpoint)
		p.noteHeld(&p.toClient)
	}
	p.move(shortTurn)
}

// watch makes the loop watch e, and reports whether that succeeded.
func (p *pair) watch(e *edge, h Handler) bool {
	var err error
	e.watch, err = p.loop.Add(int(e.fd), clientEvents, h)
	if err != nil {
		e.watch = Registration{unwatched}
	}
	return err == nil
}

func (s EdgeState) edge(fd Socket) edge {
	return edge{fd: fd, watch: Registration{unwatched}, writable: true, ended: s.Ended, lost: s.Lost, delays: s.Delays}
}

// continued sets w to the state s, with s.Rest in a pipe if possible: unlike bytes in memory, those in a pipe can survive
// a crash. If s.Rest is not empty, w holds no bytes before.
func (w *way) continued(s *WayState, pipes *pipes) {
	w.bytes.Store(s.Bytes)
	w.preface, w.begun, w.ended = s.Preface, s.Begun, s.Ended
	if len(s.Rest) == 0 {
		return
	}
	if s.Flags == 0 {
		w.pipe = pipes.hold(s.Rest)
	}
	if w.pipe == nil {
		w.keep(s.Rest, s.Flags)
	}
}

// Close closes the sockets of this process. The connections stay open if another process has copies of the sockets.
func (f *Frozen) Close() {
	f.Client.Close()
	f.Endpoint.Close()
}
