package lab

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Talk is the kind of data on a connection of Talks.
type Talk uint8

// The kinds of Talk.
const (
	Chat         Talk = iota // messages of random sizes, both ways, with pauses
	Bulk                     // as much as fits, both ways, to ends that read slowly
	ClientEnds               // Chat after the client has closed its direction
	EndpointEnds             // Chat after the endpoint has closed its direction
	Idle                     // nothing until the end, then a message both ways
	talkKinds
)

// Talks are connections that carry random bytes until End, and compare each received byte with the sent one.
type Talks struct {
	seed   uint64
	stop   chan struct{}
	ending sync.Once
	sides  sync.WaitGroup
	moved  atomic.Int64
	failed atomic.Pointer[error]
	wrong  atomic.Pointer[error]

	mu    sync.Mutex
	talks []*talk
}

// talk is a connection with the numbers of bytes that each side has sent and received.
type talk struct {
	number         uint64
	kind           Talk
	sent, received [2]atomic.Int64 // by client and endpoint
	lost           atomic.Bool
}

// NewTalks returns Talks without connections. The same seed makes them carry the same bytes.
func NewTalks(seed uint64) *Talks { return &Talks{seed: seed, stop: make(chan struct{})} }

// Client adds c, which is connected to an endpoint that calls Endpoint, to the connections.
func (t *Talks) Client(kind Talk, c *net.TCPConn) {
	t.mu.Lock()
	k := &talk{number: uint64(len(t.talks)), kind: kind}
	t.talks = append(t.talks, k)
	t.sides.Add(2)
	t.mu.Unlock()
	go func() {
		defer t.sides.Done()
		if _, err := c.Write(binary.BigEndian.AppendUint64(nil, k.number)); err != nil {
			t.fail(k, 0, err)
			t.sides.Done() // the endpoint does not receive the number
			return
		}
		t.run(k, 0, c)
	}()
}

// Endpoint is the other side of Client. It returns when c is closed.
func (t *Talks) Endpoint(c *net.TCPConn) {
	var number [8]byte
	if _, err := io.ReadFull(c, number[:]); err != nil {
		return // this client does not belong to a talk
	}
	t.mu.Lock()
	n := binary.BigEndian.Uint64(number[:])
	if n >= uint64(len(t.talks)) {
		t.mu.Unlock()
		t.fail(&talk{number: n}, 1, fmt.Errorf("%w: there is no such connection", errWrong))
		c.Close()
		return
	}
	k := t.talks[n]
	t.mu.Unlock()
	defer t.sides.Done()
	t.run(k, 1, c)
}

// Moved returns the number of bytes received so far.
func (t *Talks) Moved() int64 { return t.moved.Load() }

// Err returns the first error, or nil.
func (t *Talks) Err() error {
	if err := t.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// Wrong returns an error for the first byte that differs from the sent one, or nil.
func (t *Talks) Wrong() error {
	if err := t.wrong.Load(); err != nil {
		return *err
	}
	return nil
}

// Lost returns the number of connections that have failed.
func (t *Talks) Lost() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range t.talks {
		if k.lost.Load() {
			n++
		}
	}
	return n
}

// End ends all connections, waits until they are closed, and returns the first error, or nil.
func (t *Talks) End() error {
	t.ending.Do(func() { close(t.stop) })
	t.sides.Wait()
	for _, k := range t.talks {
		for side := range 2 {
			if sent, received := k.sent[side].Load(), k.received[1-side].Load(); sent != received && !k.lost.Load() {
				t.fail(k, side, fmt.Errorf("it has sent %d bytes, and the other side has received %d", sent, received))
			}
		}
	}
	return t.Err()
}

func (t *Talks) fail(k *talk, side int, err error) {
	err = fmt.Errorf("connection %d of seed %d (kind %d), %s: %w", k.number, t.seed, k.kind, [2]string{"client", "endpoint"}[side], err)
	k.lost.Store(true)
	t.failed.CompareAndSwap(nil, &err)
	if errors.Is(err, errWrong) {
		t.wrong.CompareAndSwap(nil, &err)
	}
}

var errWrong = errors.New("it is another byte than was sent")

// stream returns the bytes that a side sends.
func (t *Talks) stream(k *talk, side int) *rand.ChaCha8 {
	var seed [32]byte
	binary.BigEndian.PutUint64(seed[:], t.seed)
	binary.BigEndian.PutUint64(seed[8:], k.number)
	seed[16] = byte(side)
	return rand.NewChaCha8(seed)
}

func (t *Talks) run(k *talk, side int, c *net.TCPConn) {
	defer c.Close()
	var both sync.WaitGroup
	both.Go(func() {
		if err := t.send(k, side, c); err != nil {
			t.fail(k, side, fmt.Errorf("sending byte %d: %w", k.sent[side].Load(), err))
		}
	})
	both.Go(func() {
		if err := t.receive(k, side, c); err != nil {
			t.fail(k, side, fmt.Errorf("receiving byte %d: %w", k.received[side].Load(), err))
		}
	})
	both.Wait()
}

// send sends until End, and then closes the direction.
func (t *Talks) send(k *talk, side int, c *net.TCPConn) error {
	bytes, random := t.stream(k, side), rand.New(rand.NewPCG(t.seed, k.number<<1|uint64(side)))
	message := func(max int) error {
		b := make([]byte, 1+random.IntN(max))
		_, _ = bytes.Read(b) // never fails
		n, err := c.Write(b)
		k.sent[side].Add(int64(n))
		return err
	}
	ends := k.kind == ClientEnds && side == 0 || k.kind == EndpointEnds && side == 1
	for over := ends; !over; {
		pause, max := time.Duration(random.IntN(300))*time.Millisecond, 4<<10
		switch k.kind {
		case Bulk:
			pause, max = 0, 1<<20
		case Idle:
			pause = time.Hour
		}
		if k.kind == Chat && random.IntN(32) == 0 {
			max = 128 << 10
		}
		if k.kind != Idle {
			if err := message(max); err != nil {
				return err
			}
		}
		select {
		case <-t.stop:
			over = true
		case <-time.After(pause):
		}
	}
	if err := message(100); err != nil {
		return err
	}
	return c.CloseWrite()
}

// receive compares the received bytes until the other side closes its direction. It may do so before End only if its
// kind of Talk permits that.
func (t *Talks) receive(k *talk, side int, c *net.TCPConn) error {
	want := t.stream(k, 1-side)
	got, expected := make([]byte, 64<<10), make([]byte, 64<<10)
	ends := k.kind == ClientEnds && side == 1 || k.kind == EndpointEnds && side == 0
	for {
		n, err := c.Read(got)
		_, _ = want.Read(expected[:n])
		if !bytes.Equal(got[:n], expected[:n]) {
			for i := range n {
				if got[i] != expected[i] {
					k.received[side].Add(int64(i))
					return errWrong
				}
			}
		}
		k.received[side].Add(int64(n))
		t.moved.Add(int64(n))
		switch {
		case err == io.EOF && (ends || t.ended()):
			return nil
		case err == io.EOF:
			return errors.New("the connection has ended")
		case err != nil:
			return err
		}
		if k.kind == Bulk && !t.ended() {
			time.Sleep(100 * time.Millisecond) // so that bytes are buffered on the way
		}
	}
}

func (t *Talks) ended() bool {
	select {
	case <-t.stop:
		return true
	default:
		return false
	}
}

// MixOfTalks returns the kind of connection number: mostly Chat, and each other kind once in 100 connections.
func MixOfTalks(number int) Talk {
	if number%20 == 0 {
		return Talk(number / 20 % int(talkKinds))
	}
	return Chat
}
