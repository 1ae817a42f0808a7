package stream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal/fdpass"
	"github.com/usherproxy/usher/portal/fdstore"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/proxy/forward"
)

// Under a keeper, open TCP connections survive a crash of this process. For each pair that is older than savedAge, the
// keeper has copies of both sockets, and a transfer that describes the pair. In memory that both processes share, the
// pair notes whether bytes of it are in this process: see package forward. The next process gets all of that from the
// keeper. It continues the pairs that lost no byte, and resets the others. Package fdstore has the protocol.
//
// An area is the memory that one process shares with the keeper. Its first entry is a header with the last connection
// ID that was assigned. Inherited pairs note their state in the area of the process that crashed, until this process
// has saved them itself.
const (
	// savedAge is the age at which a connection is saved, so that short connections cost nothing.
	savedAge = time.Second
	// saveEvery is the interval at which copies are made and dropped.
	saveEvery = 200 * time.Millisecond
	// maxSaved is the maximum number of saved connections. The limit of open files can reduce it: the keeper has two
	// files for each connection, and spareFiles others.
	maxSaved   = 1 << 16
	spareFiles = 2048
	// keeperTime is the time for the keeper to answer when this process starts.
	keeperTime = 5 * time.Second
)

// saving keeps copies of open connections with the keeper.
type saving struct {
	*Server
	to       *net.UnixConn
	receiver Receiver
	own      *area // of this process
	full     bool  // the limit of saved connections has been logged
	// restored and reset count the connections of a process that crashed, until all have arrived.
	restored, reset int

	mu    sync.Mutex
	areas map[uint64]*area

	lastPipe  uint16          // last number assigned
	openPipes map[uint16]bool // by number
}

// area is memory that is shared with the keeper. saving.mu guards its lists.
type area struct {
	id     uint64
	memory []byte
	over   []int // slots of ended connections and closed pipes that the keeper has not dropped yet

	// Only for the area of this process: the number of slots, how many have been used so far, and which of those are
	// free again.
	slots, used int
	free        []int

	// Only for the area of a process that crashed: its pipes, until a pair owns them.
	pipes map[int][2]int
}

// inheritSaving returns the connection to the keeper, or nil if the keeper does not answer.
func (s *Server) inheritSaving(file *os.File) *saving {
	to, err := fdpass.Conn(file)
	if err != nil {
		s.node.Log.WithError(err).Warn("Cannot use the keeper's socket; open connections will be lost if usher crashes")
		return nil
	}
	v := &saving{Server: s, to: to, areas: map[uint64]*area{}, openPipes: map[uint16]bool{}}
	_ = to.SetDeadline(time.Now().Add(keeperTime)) // fails only if it is closed
	if err = fdpass.Send(to, []byte(fdstore.WordNext)); err == nil {
		err = v.receive()
	}
	if err != nil {
		s.node.Log.WithError(err).Warn("No response from the keeper; open connections will be lost if usher crashes")
		_ = fdpass.SendNow(to, []byte(fdstore.WordEnd))
		to.Close()
		return nil
	}
	for _, latest := range v.areas {
		s.node.InheritIDs(latest.lastID().Load())
	}
	return v
}

// start saves connections from now on, and continues those of a process that crashed.
func (v *saving) start(receiver Receiver) {
	v.receiver = receiver
	inherits := len(v.areas) > 0
	_ = v.to.SetDeadline(time.Time{}) // fails only if it is closed
	v.transfers.Go(func() {
		defer v.to.Close()
		defer context.AfterFunc(v.ctx, func() { v.to.Close() })()
		if inherits {
			_ = fdpass.Send(v.to, []byte(fdstore.WordNext)) // the next receive returns the error
		}
		for v.receive() == nil {
		}
		_ = fdpass.SendNow(v.to, []byte(fdstore.WordEnd)) // fails if the keeper or this process ends
	})
	v.transfers.Go(v.save)
}

// receive reads a packet and acts on it.
func (v *saving) receive() error {
	buf := make([]byte, fdstore.MaxPacket)
	n, fds, err := fdpass.Receive(v.to, buf, 2*fdstore.SavedAtOnce)
	if err == nil && n == 0 {
		err = errors.New("the keeper closed the socket")
	}
	if err != nil {
		fdpass.Close(fds)
		return err
	}
	head, lines, _ := strings.Cut(string(buf[:n]), "\n")
	word, rest, _ := strings.Cut(head, " ")
	id, _ := strconv.ParseUint(rest, 10, 64) // 0 means none
	v.mu.Lock()
	from := v.areas[id]
	v.mu.Unlock()
	switch {
	case word == fdstore.WordArea && len(fds) == 1:
		if err := v.inherit(id, fds[0]); err != nil {
			return err
		}
		if v.receiver == nil {
			return nil // the method start sends the next request
		}
	case word == fdstore.WordSave && from != nil && len(fds)%2 == 0:
		v.restore(from, lines, fds)
	case word == fdstore.WordEnd:
		v.restoredAll()
		return nil
	case word == fdstore.WordMore:
	default:
		fdpass.Close(fds)
		return fmt.Errorf("unexpected message from the keeper: %q", head)
	}
	return fdpass.Send(v.to, []byte(fdstore.WordNext))
}

// inherit maps the area of a process that crashed. This process puts no further connections into it.
func (v *saving) inherit(id uint64, fd int) error {
	defer unix.Close(fd)
	var stat unix.Stat_t
	err := unix.Fstat(fd, &stat)
	if err == nil {
		err = v.add(&area{id: id, pipes: map[int][2]int{}}, fd, int(stat.Size))
	}
	return err
}

func (v *saving) add(a *area, fd, size int) (err error) {
	if a.memory, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return os.NewSyscallError("mmap", err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.areas[a.id] = a
	return nil
}

// open creates the area of this process.
func (v *saving) open() error {
	n := maxSaved
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil && limit.Cur < 2*maxSaved+spareFiles {
		n = max(1, (int(limit.Cur)-spareFiles)/2)
	}
	file, err := handover.Memory(fdstore.ConnectionsName)
	if err != nil {
		return err
	}
	defer file.Close()
	fd, err := fdpass.Descriptor(file)
	size := (1 + n) * forward.SavedSize
	if err == nil {
		err = os.NewSyscallError("ftruncate", unix.Ftruncate(fd, int64(size)))
	}
	a := &area{id: 1 + rand.Uint64N(1<<63), slots: n}
	if err == nil {
		err = v.add(a, fd, size)
	}
	if v.own = a; err == nil {
		err = fdpass.Send(v.to, fmt.Appendf(nil, "%s %d", fdstore.WordArea, a.id), fd)
	}
	return err
}

// lastID returns the part of an area that holds the last connection ID that was assigned.
func (a *area) lastID() *atomic.Uint64 { return forward.SavedHeader(a.memory) }

// take returns the number of a free slot, or false if there is none.
func (v *saving) take() (number int, ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	a := v.own
	if last := len(a.free) - 1; last >= 0 {
		number, a.free = a.free[last], a.free[:last]
		return number, true
	}
	if a.used == a.slots {
		return 0, false
	}
	a.used++
	return a.used, true
}

// countSaved counts a saved connection, and returns a function to call when it has ended.
func (v *saving) countSaved(a *area, number int) func() {
	v.saved.Add(1)
	return func() {
		v.saved.Add(-1)
		v.mu.Lock()
		a.over = append(a.over, number)
		v.mu.Unlock()
	}
}

// save saves connections until the server gives up or the keeper no longer receives.
func (v *saving) save() {
	err := v.open()
	for err == nil {
		select {
		case <-v.ctx.Done():
			return
		case <-time.After(saveEvery):
		}
		v.own.lastID().Store(v.node.LastID())
		err = v.drop()
		for _, l := range v.running() {
			if err == nil && l.Unsaved() {
				err = v.saveLoop(l)
			}
		}
	}
	if v.ctx.Err() == nil {
		v.node.Log.WithError(err).Warn("Saving of connections with the keeper stopped; open connections will be lost if usher crashes")
	}
}

// drop makes the keeper close its copies of connections that have ended, and of closed pipes.
func (v *saving) drop() error {
	v.mu.Lock()
	over := map[*area][]int{}
	for _, a := range v.areas {
		over[a], a.over = a.over, nil
	}
	v.mu.Unlock()
	for a, numbers := range over {
		for len(numbers) > 0 {
			text := fmt.Appendf(nil, "%s %d", fdstore.WordDrop, a.id)
			n := 0
			for n < len(numbers) && len(text) < fdstore.MaxPacket/2 {
				text = fmt.Append(append(text, ' '), numbers[n])
				n++
			}
			if err := fdpass.Send(v.to, text); err != nil {
				return err
			}
			if a == v.own {
				v.release(numbers[:n])
			}
			numbers = numbers[n:]
		}
	}
	return nil
}

// release makes slots of this process free again.
func (v *saving) release(numbers []int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, number := range numbers {
		if number > 0 {
			v.own.free = append(v.own.free, number)
		} else {
			delete(v.openPipes, uint16(-number))
		}
	}
}

// saveLoop saves the connections of a loop that are old enough.
func (v *saving) saveLoop(l *forward.Loop) (err error) {
	for from, more := 0, true; more && err == nil; {
		full := false
		l.Call(func() {
			l.SavePipes(v.savePipe, v.dropPipe)
			b := v.newBatch()
			from, more = l.PairsFrom(from, func(p *forward.PairHere, owner forward.Owner) bool {
				c, is := owner.(*Conn)
				if !is || p.IsSaved() || time.Since(c.Start) < savedAge {
					return true
				}
				if len(b.pairs) == fdstore.SavedAtOnce || b.text.Len() > fdstore.MaxPacket/2 { // below MaxPacket/2, another connection (at most 20 kB) still fits into MaxPacket
					return false
				}
				number, free := v.take()
				if full = !free; free {
					b.add(number, c, p)
				}
				return free
			})
			if more = more && !full; len(b.pairs) > 0 {
				err = b.send()
			}
		})
		switch {
		case errors.Is(err, unix.EAGAIN): // the keeper is busy
			err = nil
			time.Sleep(saveEvery / 20)
		case errors.Is(err, unix.ETOOMANYREFS), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM): // too many descriptors or messages are on the way, or the kernel has no memory for this one: the next round saves the rest
			err, more = nil, false
		}
		if full && !v.full {
			v.full = true
			v.node.Log.WithField("saved", v.saved.Load()).Warn("Limit of saved connections reached; further ones will be lost if usher crashes")
		}
		if err == nil {
			err = v.drop() // soon, since the keeper cannot hold the crashed process's copies and new ones of all connections at once
		}
	}
	return err
}

// savePipe gives the keeper copies of a pipe, and returns the pipe's number; 0 if the keeper is busy.
func (v *saving) savePipe(read, write int) (number uint16) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for number = v.lastPipe + 1; number == 0 || v.openPipes[number]; number++ {
	}
	if fdpass.SendNow(v.to, fmt.Appendf(nil, "%s %d\n-%d \n", fdstore.WordSave, v.own.id, number), read, write) != nil {
		return 0
	}
	v.lastPipe, v.openPipes[number] = number, true
	return number
}

// dropPipe is called when a pipe is closed.
func (v *saving) dropPipe(number uint16) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.own.over = append(v.own.over, -int(number))
}

// batch is a packet of connections. They are saved when it is sent.
type batch struct {
	*saving
	text  bytes.Buffer
	lines *json.Encoder // to text
	fds   []int
	pairs []*forward.PairHere
}

func (v *saving) newBatch() *batch {
	b := &batch{saving: v}
	fmt.Fprintf(&b.text, "%s %d\n", fdstore.WordSave, v.own.id)
	b.lines = json.NewEncoder(&b.text)
	return b
}

// add adds a connection. From then on the pair notes its state.
func (b *batch) add(number int, c *Conn, p *forward.PairHere) {
	p.Save(forward.SavedAt(b.own.memory, number), b.countSaved(b.own, number))
	b.pairs = append(b.pairs, p)
	client, endpoint := p.Sockets()
	b.fds = append(b.fds, int(client), int(endpoint))
	fmt.Fprint(&b.text, number, " ")
	_ = b.lines.Encode(c.transfer(p.State())) // every field can be encoded
}

// send sends the batch at once or not at all.
func (b *batch) send() error {
	err := errors.New("message too long")
	if b.text.Len() <= fdstore.MaxPacket {
		err = fdpass.SendNow(b.to, b.text.Bytes(), b.fds...)
	}
	for _, p := range b.pairs {
		if err != nil {
			p.Unsave()
		} else {
			p.Keep()
		}
	}
	return err
}

// restore continues the connections that lines describe, in a's slots, with copies of their sockets. Lines of pipes
// come before those of connections.
func (v *saving) restore(a *area, lines string, fds []int) {
	beginErr := v.receiver.Begin()
	if beginErr == nil {
		defer v.receiver.End()
	}
	var dropped []int
	for line := range strings.Lines(lines) {
		if len(fds) < 2 {
			break
		}
		ends := [2]int(fds)
		client, endpoint := forward.Socket(ends[0]), forward.Socket(ends[1])
		fds = fds[2:]
		number, text, _ := strings.Cut(line, " ")
		n, err := strconv.Atoi(number)
		if err == nil && n < 0 {
			a.pipes[-n] = ends
			continue
		}
		if err != nil || n < 1 || (n+1)*forward.SavedSize > len(a.memory) {
			forward.Reset(client, endpoint)
			continue
		}
		if !v.restoreOne(a, n, []byte(text), client, endpoint, beginErr) {
			dropped = append(dropped, n)
		}
	}
	fdpass.Close(fds)
	v.mu.Lock()
	a.over = append(a.over, dropped...)
	v.mu.Unlock()
}

// restoreOne continues a connection, and reports whether it did. Otherwise it resets the connection, unless that has
// ended or another process has it. beginErr, if not nil, is the reason why this process continues no connections.
func (v *saving) restoreOne(a *area, number int, text []byte, client, endpoint forward.Socket, beginErr error) bool {
	saved := forward.SavedAt(a.memory, number)
	if saved.Over() {
		client.Close()
		endpoint.Close()
		return false
	}
	var c *held
	err := beginErr
	if err == nil {
		c, err = v.readmit(a, saved, text)
	}
	if err != nil {
		v.reset++
		v.node.Log.WithError(err).Debug("Cannot restore a connection; resetting it")
		forward.Reset(client, endpoint)
		return false
	}
	v.restored++
	c.frozen.Client, c.frozen.Endpoint = client, endpoint
	c.frozen.Saved, c.frozen.Over = saved, v.countSaved(a, number)
	v.proceed(c)
	return true
}

// readmit returns the connection that text describes, with its pipes, if no byte of it is lost.
func (v *saving) readmit(a *area, saved *forward.Saved, text []byte) (*held, error) {
	t, err := readTransfer(text)
	if err != nil {
		return nil, err
	}
	whole, toEndpoint, toClient := saved.Restored(&t.Pair)
	if !whole || !a.has(toEndpoint) || !a.has(toClient) {
		return nil, errors.New("some of its bytes were in the crashed process")
	}
	if (t.Pair.ToEndpoint.Begun || t.Pair.ToClient.Begun) && t.Record.FirstByte <= 0 {
		// A byte has moved since the record was saved, so the time to the first byte is unknown. Both directions are
		// marked as begun, since the pair then reports no time to the first byte.
		t.Pair.ToEndpoint.Begun, t.Pair.ToClient.Begun = true, true
		t.Record.ForgetFirstByte()
	}
	if err := v.loops.start(v.Server); err != nil {
		return nil, err
	}
	c, err := v.acceptTransfer(t, v.receiver)
	if err != nil {
		return nil, err
	}
	c.frozen.ToEndpointPipe, c.frozen.ToClientPipe = a.pipe(toEndpoint), a.pipe(toClient)
	return c, nil
}

// has reports whether the pipe with that number has arrived. It returns true for 0.
func (a *area) has(number int) bool {
	_, has := a.pipes[number]
	return has || number == 0
}

// pipe returns the pipe with that number, or nil if there is none, as for 0. The caller owns the pipe.
func (a *area) pipe(number int) *forward.Pipe {
	ends, has := a.pipes[number]
	if !has {
		return nil
	}
	delete(a.pipes, number)
	return forward.NewPipe(ends[0], ends[1])
}

// restoredAll is called when the keeper has sent all connections of a process that crashed.
func (v *saving) restoredAll() {
	v.mu.Lock()
	for _, a := range v.areas {
		for number, ends := range a.pipes {
			fdpass.Close(ends[:])
			delete(a.pipes, number)
		}
	}
	v.mu.Unlock()

	if v.restored+v.reset > 0 {
		v.node.Log.WithFields(logrus.Fields{"connections": v.restored, "reset": v.reset}).Warn("Open connections restored after a crash")
	}
	v.restored, v.reset = 0, 0
}
