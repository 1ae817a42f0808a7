package forward

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/proxy/outcome"
)

// A pair is handed over between two rounds of its loop: Freeze takes it off the loop, with what
// was read and could not be written, and Continue puts it onto a loop, of this process or of another
// one that has copies of both sockets. In between neither reads, so no byte is lost or moved
// twice; whatever the peers do meanwhile waits in the sockets, and the kernel reports it to the loop
// that watches them next. The other process may have copies of the sockets a moment longer, or for good if
// it hangs. So a pair that was frozen ends with shutdown(2), or with a reset that does not wait until the last copy is closed.

// Frozen is a pair that no loop moves.
type Frozen struct {
	PairState
	Owner Owner
	// Client and Endpoint are the pair's sockets. They belong to the caller.
	Client, Endpoint Socket
	// Saved and Over are as in PairHere.Save, for a pair that a process has saved that crashed. Otherwise they are nil, and
	// a pair that continues in the same process stays saved.
	Saved *Saved
	Over  func()
	// ToEndpointPipe and ToClientPipe hold bytes of such a pair, unless they are nil.
	ToEndpointPipe, ToClientPipe *Pipe
}

// PairState is what a loop needs to continue a pair, besides its sockets. Another process may read it as JSON, but for Rest.
type PairState struct {
	ClientEdge, EndpointEdge EdgeState
	ToEndpoint, ToClient     WayState
	Limits                   Limits
	Watch                    WatchState
	Ending                   string `json:",omitempty"` // Outcome so far, in its own word
	Errno                    uint16 `json:",omitempty"` // the error that belongs to Ending
	Half, Probed             bool   `json:",omitempty"`
}

// EdgeState is what is known of one of a pair's sockets that the kernel does not report again.
type EdgeState struct {
	Ended, Lost, Delays bool `json:",omitempty"`
}

// WayState is one of a pair's two directions.
type WayState struct {
	Bytes        int64
	Preface      uint16 `json:",omitempty"`
	Begun, Ended bool   `json:",omitempty"`
	Rest         []byte `json:"-"`          // that was read and not written; too large for JSON
	Flags        int    `json:",omitempty"` // of Rest
}

// WatchState is how far a pair is from its limits; zero for a pair that has none so far.
type WatchState struct {
	Began, Silent time.Time `json:",omitzero"`
	Unsent        int       `json:",omitempty"`
	Moved         bool      `json:",omitempty"`
}

// PairsFrom calls f for pairs of the loop and their owners, from a slot on, until f returns
// false. It returns the slot to continue at, which is that pair's own, and whether there may be more pairs.
// Only the loop may call it; f may freeze the pair.
func (l *Loop) PairsFrom(slot int, f func(*PairHere, Owner) bool) (next int, more bool) {
	for ; slot < len(l.slots); slot++ {
		if e, is := l.slots[slot].handler.(*endpointEdge); is && !f((*PairHere)(e), e.done) {
			return slot, true
		}
	}
	return slot, false
}

// Freeze writes what the pair has read, as far as there is room, and takes the pair off
// the loop: its sockets stay open, and nothing reads them. Break and Retire have no effect until Continue. It
// returns nil if the pair has ended.
func (h *PairHere) Freeze() *Frozen {
	p := (*pair)(h)
	l := p.loop
	if p.done == nil {
		return nil
	}
	if p.saved != nil { // while the pair may be on its way to another process, it must not be continued by a third one
		p.noteMoving(&p.toEndpoint)
		p.noteMoving(&p.toClient)
	}
	toEndpoint, ok := p.empty(&p.toEndpoint, &p.endpoint)
	toClient, okToo := p.empty(&p.toClient, &p.client)
	if p.done == nil {
		return nil
	}
	if !ok || !okToo { // bytes are lost: the peers must not take what they have for all
		p.reset(outcome.Internal, unix.EIO)
		return nil
	}
	f := &Frozen{Owner: p.done, Client: p.client.fd, Endpoint: p.endpoint.fd, PairState: PairState{
		ClientEdge: p.client.state(), EndpointEdge: p.endpoint.state(),
		ToEndpoint: toEndpoint, ToClient: toClient,
		Limits: *p.limits, Watch: WatchState{Moved: p.moved},
		Ending: p.ending.outcome.String(), Errno: p.ending.number, Half: p.half, Probed: p.probed,
	}}
	if p.place > 0 {
		w := l.limited.pairs[p.place-1].watch
		f.Watch.Began, f.Watch.Silent, f.Watch.Unsent = w.began, w.silent, w.unsent
		l.limited.remove(p)
	}
	l.Remove(p.client.watch)
	l.Remove(p.endpoint.watch)
	if p.done = nil; l.pairs.Add(-1) == 0 {
		l.pipes.close()
	}
	return f
}

func (e *edge) state() EdgeState { return EdgeState{Ended: e.ended, Lost: e.lost, Delays: e.delays} }

// empty writes what w holds, as far as there is room, and returns the state of w with what is
// left, of which the pair keeps nothing. ok is false if that could not be read out of a pipe.
func (p *pair) empty(w *way, to *edge) (s WayState, ok bool) {
	if w.rest != nil {
		p.writeRest(w, to)
	} else if w.pipe != nil {
		p.drain(w, to)
	}
	if p.done == nil {
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

// take reads all that a pipe holds.
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
		if n <= 0 { // it holds less than was spliced into it
			return nil, false
		}
		p.held -= n
	}
	return b, true
}

// Known reports whether this version understands all values of s.
func (s *PairState) Known() bool {
	return outcome.Named(s.Ending).String() == s.Ending
}

// Continue makes the loop move a frozen pair, as in, which is zero or the pair that was frozen on this loop.
// Only the loop may call it; the owner may be told before it returns that the pair has ended. limits are
// those of f, and may be shared by many pairs.
func (l *Loop) Continue(in *Pair, f *Frozen, limits *Limits) {
	p := &in.pair
	if p.loop == nil { // others may read it
		p.loop = l
	}
	p.limits, p.done = limits, f.Owner
	p.client, p.endpoint = f.ClientEdge.edge(f.Client), f.EndpointEdge.edge(f.Endpoint)
	p.ending = errno{outcome.Named(f.Ending), f.Errno}
	if p.shared = true; f.Saved != nil {
		p.saved = &saved{Saved: f.Saved, over: f.Over}
	}
	p.half, p.probed, p.moved = f.Half, f.Probed, f.Watch.Moved
	p.toEndpoint.continued(&f.ToEndpoint)
	p.toClient.continued(&f.ToClient)
	p.toEndpoint.pipe, p.toClient.pipe = l.pipes.adopt(f.ToEndpointPipe), l.pipes.adopt(f.ToClientPipe)
	l.pairs.Add(1)
	if !p.watch(&p.client, (*clientEdge)(p)) || !p.watch(&p.endpoint, (*endpointEdge)(p)) {
		p.reset(outcome.Limit, unix.ENOMEM)
		return
	}
	if !p.probed {
		l.probeLater()
	}
	if limits.Idle > 0 || limits.Age > 0 || !limits.Retire.IsZero() || p.half && limits.HalfClosed > 0 {
		l.limited.add(p)
		if w := f.Watch; !w.Began.IsZero() {
			l.limited.pairs[p.place-1].watch = watch{began: w.Began, silent: w.Silent, unsent: w.Unsent}
		}
	}
	p.noteHeld(&p.toEndpoint)
	p.noteHeld(&p.toClient)
	p.move(shortTurn)
}

// watch makes the loop watch e again.
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

// continued makes w, from which nothing is held, go on as s says.
func (w *way) continued(s *WayState) {
	w.bytes.Store(s.Bytes)
	w.preface, w.begun, w.ended = s.Preface, s.Begun, s.Ended
	if len(s.Rest) > 0 {
		w.keep(s.Rest, s.Flags)
	}
}

// Close closes the sockets in this process. The connections stay open in another one that has copies.
func (f *Frozen) Close() {
	f.Client.Close()
	f.Endpoint.Close()
}
