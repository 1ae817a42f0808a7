package stream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal/fdpass"
	"github.com/usherproxy/usher/portal/fdstore"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/forward"
)

// Open TCP connections follow the listeners to a successor, over a socket pair. The successor gets one end with the
// listeners. Once it has taken over, both processes repeat this exchange:
//
//	predecessor              successor
//	offer               →                  when there are connections to hand over
//	                    ←    go            when the successor can take them now
//	descriptors         →                  one file, and two sockets for each connection. The file begins with a line
//	                                       for each connection; the bytes that pairs hold come after all lines
//	                    ←    a digit for each connection: 1 if the successor takes it, 0 if not; and a period
//
// After "go" the predecessor freezes the pairs. It restores those that are not taken: all of them if no answer comes.
// The answer decides: the successor reads from the sockets only after it has sent the answer. A predecessor that stops
// waiting shuts its socket down for reading, so that no further answer can be sent. Then it reads an answer that has
// already arrived. The predecessor does not offer connections that goroutines serve, nor those of a service port while
// clients of that port are queued for an endpoint. Clients without an endpoint follow when they have one.
//
// If the successor's version does not know this socket, the successor closes it. All connections then stay.

const (
	wordOffer = "offer"
	wordGo    = "go"

	// offerPrefix begins the name of the successor's end. After it comes the last connection ID that the predecessor
	// has assigned so far.
	offerPrefix = "open connections, version 1, after number "

	// pairsAtOnce is the maximum number of pairs that are frozen together: one packet can carry their descriptors. The
	// first batch has firstPairs. The number doubles after a full batch that took less than shortPause. After a batch
	// that took longer, it is halved, but not below firstPairs. So even on a slow machine, the answer comes within
	// answerTime.
	pairsAtOnce = handover.SocketsAtOnce/2 - 1
	firstPairs  = 8
	shortPause  = answerTime / 20
	// bytesAtOnce limits frozen pairs, too: when they hold that number of bytes or more, no further pair is frozen.
	bytesAtOnce = 1 << 20
	// answerTime is the time for the other side to answer while pairs are frozen. An answer needs milliseconds.
	answerTime = 10 * time.Second
	// offerEvery is the interval at which the predecessor looks for newly established connections.
	offerEvery = 20 * time.Millisecond
)

// transfer is a connection in a handover, as JSON. A successor refuses a connection if it does not know all of its
// fields.
type transfer struct {
	Port     config.PortID
	Record   conn.Snapshot
	Endpoint netip.AddrPort
	Pod      string    `json:",omitempty"`
	Node     string    `json:",omitempty"`
	Draining time.Time `json:"Left,omitzero"` // start of the endpoint's drain; earlier versions know the key Left
	Pair     forward.PairState

	// The pair's bytes begin At bytes after the end of the last line. First come ForEndpoint bytes for the endpoint,
	// then ForClient bytes for the client.
	At, ForEndpoint, ForClient int `json:",omitempty"`
}

// NewTransfer creates the socket pair for handing over open connections. It returns the predecessor's end, and the
// successor's end as a Socket to hand over with the listeners. If either end is closed before the successor has
// accepted a connection, all connections stay with the predecessor.
func (s *Server) NewTransfer() (*net.UnixConn, handover.Socket, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, handover.Socket{}, os.NewSyscallError("socketpair", err)
	}
	theirs := handover.Socket{Name: fmt.Sprintf("%s%d", offerPrefix, s.node.LastID())}
	theirs.File = os.NewFile(uintptr(fds[1]), theirs.Name)
	ours, err := fdpass.Conn(os.NewFile(uintptr(fds[0]), "offer"))
	if err != nil {
		theirs.File.Close()
		return nil, handover.Socket{}, err
	}
	return ours, theirs, nil
}

// Inherit takes two sockets out of those that a predecessor or the keeper has sent: the socket to the keeper, and the
// successor's end of a socket pair (see NewTransfer). It returns the latter, or nil if there is none. Call it before the
// first client connects.
func (s *Server) Inherit(sockets map[string]*os.File) (from *net.UnixConn) {
	if file := sockets[fdstore.ConnectionsName]; file != nil {
		s.saving = s.inheritSaving(file)
		delete(sockets, fdstore.ConnectionsName)
	}
	for name, file := range sockets {
		number, is := strings.CutPrefix(name, offerPrefix)
		if !is {
			continue
		}
		delete(sockets, name)
		var last uint64
		if _, err := fmt.Sscan(number, &last); err != nil || from != nil {
			file.Close()
		} else if c, err := fdpass.Conn(file); err == nil {
			s.node.InheritIDs(last)
			from = c
		}
	}
	return from
}

// handing is a predecessor that hands over its connections.
type handing struct {
	*Server
	to          *net.UnixConn
	taken       int
	atOnce      int                                 // number of pairs in the next batch
	longest     time.Duration                       // maximum time that a pair was frozen
	drainingNow func() map[*balance.State]time.Time // see HandOver
	draining    map[*balance.State]time.Time        // result of drainingNow for the current batch
}

// HandOver hands open connections over to a successor that has taken over, including those that get an endpoint later.
// HandOver returns at once; the handover ends when the successor accepts no more, or when Drain gives up the
// connections. The function draining returns the draining endpoints, each with the start of its drain.
func (s *Server) HandOver(c *net.UnixConn, draining func() map[*balance.State]time.Time) {
	s.transfers.Go(func() { s.handOver(c, draining) })
}

func (s *Server) handOver(c *net.UnixConn, draining func() map[*balance.State]time.Time) {
	defer c.Close()
	h := &handing{Server: s, to: c, atOnce: firstPairs, drainingNow: draining}
	began, logged := time.Now(), false
	for {
		before := h.taken
		for _, l := range h.running() {
			if err := h.pass(l); err != nil {
				if s.ctx.Err() != nil {
					return
				}
				s.node.Log.WithError(err).WithField("connections", s.node.Budget.Connections.Load()).Warn("Handover of open connections stopped; the remaining ones stay with this process")
				return
			}
		}
		if !logged && h.taken > 0 {
			logged = true
			s.node.Log.WithFields(logrus.Fields{
				"connections": h.taken, "staying": s.node.Budget.Connections.Load(),
				"duration": time.Since(began).Round(10 * time.Microsecond).String(), "longestPause": h.longest.Round(10 * time.Microsecond).String(),
			}).Info("Open connections handed over")
		}
		if h.taken > before {
			continue
		}
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(offerEvery):
		}
	}
}

// running returns the loops, or none once they have ended.
func (s *Server) running() []*forward.Loop {
	s.stopping.Lock()
	defer s.stopping.Unlock()
	return s.loops.list
}

// held is a connection whose pair is frozen.
type held struct {
	*Conn
	frozen *forward.Frozen
}

// abandon closes this process's descriptors of the connection, which stays open in another process.
func (c *held) abandon() {
	c.frozen.Close()
	c.Endpoint.Release()
	c.server.register.remove(c.Conn)
}

// pass hands over the connections of a loop.
func (h *handing) pass(l *forward.Loop) error {
	for from := 0; ; {
		found, more := false, false
		l.Call(func() {
			from, more = l.PairsFrom(from, func(_ *forward.PairHere, owner forward.Owner) bool {
				found = h.canHandOver(owner)
				return !found
			})
		})
		switch {
		case !more:
			return nil
		case !found:
			continue
		}
		h.draining = h.drainingNow()
		if err := h.ask(); err != nil {
			return err
		}
		var batch []held
		var began time.Time
		l.Call(func() {
			size := 0
			began = time.Now()
			from, _ = l.PairsFrom(from, func(p *forward.PairHere, owner forward.Owner) bool {
				if !h.canHandOver(owner) {
					return true
				}
				if len(batch) == h.atOnce || size >= bytesAtOnce {
					return false
				}
				if f := p.Freeze(); f != nil {
					batch = append(batch, held{owner.(*Conn), f})
					size += len(f.ToEndpoint.Rest) + len(f.ToClient.Rest)
				}
				return true
			})
		})
		answer, err := h.send(batch)
		pause := time.Since(began)
		h.longest = max(h.longest, pause)
		if pause >= shortPause {
			h.atOnce = max(h.atOnce/2, firstPairs)
		} else if len(batch) == h.atOnce {
			h.atOnce = min(2*h.atOnce, pairsAtOnce)
		}
		var stay []held
		for i, c := range batch {
			if i < len(answer) && answer[i] == '1' {
				h.taken++
				c.pair.Forget()
				c.abandon()
			} else {
				c.stays = true
				stay = append(stay, c)
			}
		}
		if len(stay) > 0 {
			l.Call(func() {
				for _, c := range stay {
					l.Continue(&c.pair, c.frozen, c.limitsOf(c.frozen))
					c.flowing(&c.pair)
				}
			})
		}
		if err != nil {
			return err
		}
	}
}

// canHandOver reports whether a pair may be handed over now. Only its loop may call it.
func (h *handing) canHandOver(owner forward.Owner) bool {
	c, is := owner.(*Conn)
	return is && !c.stays && c.Front.View().Cluster.Queued() == 0
}

// ask returns when the successor can take connections.
func (h *handing) ask() error {
	if err := h.to.SetDeadline(time.Time{}); err != nil {
		return err
	}
	defer context.AfterFunc(h.ctx, func() { h.to.Close() })()
	if err := fdpass.Send(h.to, []byte(wordOffer)); err != nil {
		return err
	}
	text, _, err := receive(h.to)
	if err == nil && text != wordGo {
		err = fmt.Errorf("unexpected reply %q from the successor", text)
	}
	return err
}

// send sends batch, and returns the successor's answer; "" if there is none. An error ends the handover, but an answer
// may still have arrived.
func (h *handing) send(batch []held) (answer string, err error) {
	_ = h.to.SetDeadline(time.Now().Add(answerTime)) // fails only if it is closed
	file, err := handover.Memory(wordOffer)
	if err != nil {
		return "", err
	}
	defer file.Close()
	fd, err := fdpass.Descriptor(file)
	if err != nil {
		return "", err
	}
	fds, lines, rests := []int{fd}, new(bytes.Buffer), new(bytes.Buffer)
	to := json.NewEncoder(lines)
	for _, c := range batch {
		t := c.transfer(c.frozen.PairState)
		t.Draining, t.At, t.ForEndpoint, t.ForClient = h.draining[c.Endpoint.State], rests.Len(), len(c.frozen.ToEndpoint.Rest), len(c.frozen.ToClient.Rest)
		if err := to.Encode(t); err != nil {
			return "", err
		}
		rests.Write(c.frozen.ToEndpoint.Rest)
		rests.Write(c.frozen.ToClient.Rest)
		fds = append(fds, int(c.frozen.Client), int(c.frozen.Endpoint))
	}
	if _, err := io.Copy(file, io.MultiReader(lines, rests)); err != nil {
		return "", err
	}
	if err = fdpass.Send(h.to, []byte(wordOffer), fds...); err == nil {
		answer, _, err = receive(h.to)
	}
	if err == nil {
		return answer, nil
	}
	// From here on the successor cannot answer, but it may have answered just before.
	_ = h.to.CloseRead()
	_ = h.to.SetReadDeadline(time.Time{})
	for range 2 { // the kernel reports a socket error before data that has arrived
		if answer, _, late := receive(h.to); late == nil {
			return answer, err
		}
	}
	return "", err
}

// transfer describes the connection, whose pair has that state.
func (c *Conn) transfer(state forward.PairState) *transfer {
	e := c.Endpoint
	return &transfer{Port: c.Front.ID(), Record: c.Snapshot(), Pair: state, Endpoint: e.Addr, Pod: e.Pod, Node: e.Node}
}

// limitsOf returns the limits of a pair that is continued. If they equal those of the service port, the pair shares
// these.
func (c *Conn) limitsOf(f *forward.Frozen) *forward.Limits {
	if shared := c.Front.View().Limits; *shared == f.Limits {
		return shared
	}
	own := f.Limits
	return &own
}

// receive returns the other side's text and descriptors. The caller closes the descriptors.
func receive(from *net.UnixConn) (text string, fds []int, err error) {
	buf := make([]byte, 4*pairsAtOnce)
	n, fds, err := fdpass.Receive(from, buf, 1+2*pairsAtOnce)
	if err != nil {
		fdpass.Close(fds)
		return "", nil, err
	}
	return string(buf[:n]), fds, nil
}

// Receive takes over the connections that a predecessor hands over, unless from is nil. With a keeper, it also
// continues those of a process that crashed, and saves connections from then on (see saving). Receive returns at once.
func (s *Server) Receive(from *net.UnixConn, receiver Receiver) {
	if s.saving != nil {
		s.saving.start(receiver)
	}
	if from == nil {
		return
	}
	s.transfers.Go(func() {
		defer from.Close()
		defer context.AfterFunc(s.ctx, func() { from.Close() })()
		for s.receiveBatch(from, receiver) == nil {
		}
	})
}

func (s *Server) receiveBatch(from *net.UnixConn, receiver Receiver) error {
	_ = from.SetDeadline(time.Time{}) // fails only if it is closed
	if _, fds, err := receive(from); err != nil {
		return err
	} else if fdpass.Close(fds); len(fds) > 0 {
		return errors.New("unexpected descriptors in an offer")
	}
	if err := receiver.Begin(); err != nil {
		return err
	}
	defer receiver.End()
	_ = from.SetDeadline(time.Now().Add(answerTime))
	if err := fdpass.Send(from, []byte(wordGo)); err != nil {
		return err
	}
	_, fds, err := receive(from)
	if err != nil {
		return err
	}
	arrived, answer, err := s.acceptBatch(fds, receiver)
	if err == nil {
		err = fdpass.Send(from, answer)
	}
	if err != nil {
		for _, c := range arrived {
			c.abandon()
		}
		return err
	}
	for _, c := range arrived {
		s.proceed(&c)
	}
	return nil
}

// proceed makes a loop continue c, a connection of another process.
func (s *Server) proceed(c *held) {
	l := s.loops.list[rand.N(len(s.loops.list))]
	_ = l.Do(func() { // the loop runs as long as there are connections
		c.Endpoint.Connected.Add(1)
		c.Continued(time.Now())
		l.Continue(&c.pair, c.frozen, c.limitsOf(c.frozen))
		c.flowing(&c.pair)
	})
}

// acceptBatch returns the accepted connections, and the answer that names them. It closes the descriptors of all
// others.
func (s *Server) acceptBatch(fds []int, receiver Receiver) (arrived []held, answer []byte, err error) {
	if len(fds) == 0 || len(fds)%2 == 0 {
		fdpass.Close(fds)
		return nil, nil, fmt.Errorf("received %d descriptors: must be an odd number", len(fds))
	}
	file := os.NewFile(uintptr(fds[0]), wordOffer)
	defer file.Close()
	rests, err := io.ReadAll(io.NewSectionReader(file, 0, 1<<30))
	if err == nil {
		err = s.loops.start(s)
	}
	if err != nil {
		fdpass.Close(fds[1:])
		return nil, nil, err
	}
	sockets := slices.Collect(slices.Chunk(fds[1:], 2))
	lines := make([][]byte, len(sockets))
	for i := range lines {
		lines[i], rests, _ = bytes.Cut(rests, []byte("\n"))
	}
	for i, line := range lines {
		var c *held
		t, err := readTransfer(line)
		if err == nil {
			err = t.takeRests(rests)
		}
		if err == nil {
			c, err = s.acceptTransfer(t, receiver)
		}
		if err != nil {
			s.node.Log.WithError(err).Debug("A connection stays with the previous usher process")
			fdpass.Close(sockets[i])
			answer = append(answer, '0')
			continue
		}
		c.frozen.Client, c.frozen.Endpoint = forward.Socket(sockets[i][0]), forward.Socket(sockets[i][1])
		arrived, answer = append(arrived, *c), append(answer, '1')
	}
	return arrived, append(answer, '.'), nil // an empty packet would look like end of file
}

// readTransfer returns the transfer that line encodes. It returns an error for a malformed line, and for fields or
// values that this version does not know.
func readTransfer(line []byte) (*transfer, error) {
	t := new(transfer)
	from := json.NewDecoder(bytes.NewReader(line))
	from.DisallowUnknownFields()
	if err := from.Decode(t); err != nil {
		return nil, err
	}
	if !t.Pair.Known() {
		return nil, fmt.Errorf("unknown outcome %q", t.Pair.Ending)
	}
	return t, nil
}

// takeRests takes the pair's bytes from rests.
func (t *transfer) takeRests(rests []byte) error {
	if t.At < 0 || t.ForEndpoint < 0 || t.ForClient < 0 || t.At+t.ForEndpoint+t.ForClient > len(rests) {
		return errors.New("buffered bytes are missing")
	}
	t.Pair.ToEndpoint.Rest, t.Pair.ToClient.Rest = rests[t.At:][:t.ForEndpoint], rests[t.At+t.ForEndpoint:][:t.ForClient]
	return nil
}

// acceptTransfer returns the connection that a transfer describes. It registers the connection and counts it at its
// endpoint.
func (s *Server) acceptTransfer(t *transfer, receiver Receiver) (*held, error) {
	front, endpoint := receiver.Find(t.Port, t.Record.To, &config.Endpoint{Addr: t.Endpoint, Pod: t.Pod, Node: t.Node}, t.Draining)
	if front == nil {
		return nil, fmt.Errorf("%s is not served here", t.Port)
	}
	c := &Conn{server: s}
	var err error
	if c.Record, err = t.Record.Record(front.View().Clients); err != nil {
		return nil, err
	}
	c.Front, c.Endpoint = front, endpoint.Own()
	if err := s.register.add(c); err != nil {
		return nil, err
	}
	c.ID = s.node.InheritedID(c.ID)
	endpoint.Take()
	return &held{c, &forward.Frozen{PairState: t.Pair, Owner: c}}, nil
}
