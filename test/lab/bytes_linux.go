package lab

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

// CompareBytes sends random bytes over one connection after the other. open returns the two ends of a connection,
// which may belong to different TCP connections. CompareBytes checks that each end reads the other end's bytes and
// sees the same kind of end: FIN or reset. It runs for about d, or for the duration in the environment variable
// USHER_BYTES. With resets, some connections end with a reset. ended is called after each connection.
func CompareBytes(d time.Duration, resets bool, open func() (client, endpoint *net.TCPConn), ended func(Ending)) {
	ginkgo.GinkgoHelper()
	if long := os.Getenv("USHER_BYTES"); long != "" {
		var err error
		d, err = time.ParseDuration(long)
		gomega.Expect(err).NotTo(gomega.HaveOccurred(), "USHER_BYTES")
	}
	seed := uint64(ginkgo.GinkgoRandomSeed())
	ginkgo.GinkgoWriter.Printf("seed %d (-ginkgo.seed)\n", seed)
	n, began := uint64(0), time.Now()
	defer func() { ginkgo.GinkgoWriter.Printf("%d connections in %s\n", n, time.Since(began)) }()
	for ; time.Since(began) < d; n++ {
		client, endpoint := open()
		opened := time.Now()
		e, err := compareBytes(rand.New(rand.NewPCG(seed, n)), resets, client, endpoint)
		if took := time.Since(opened); took > 3*time.Second {
			ginkgo.GinkgoWriter.Printf("connection %d took %s: %+v\n", n, took, e)
		}
		gomega.Expect(err).NotTo(gomega.HaveOccurred(), "connection %d of seed %d: %+v", n, seed, e)
		ended(e)
	}
}

// Ending describes how each end closed the connection: with FIN, or with a reset.
type Ending struct{ ClientReset, EndpointReset bool }

// patience is the maximum time without data from an end that is still sending.
const patience = 20 * time.Second

// end is one end of a connection.
type end struct {
	conn          *net.TCPConn
	reset         bool // after everything is written
	small         bool // some socket buffers are small
	wrote, read   []byte
	writes, reads *rand.Rand
	writeErr      error
	readErr       error
}

func compareBytes(r *rand.Rand, resets bool, client, endpoint *net.TCPConn) (Ending, error) {
	a, b := &end{conn: client}, &end{conn: endpoint}
	switch r.IntN(8) {
	case 0:
		a.reset = resets
	case 1:
		b.reset = resets
	}
	a.small = r.IntN(3) == 0
	b.small = a.small
	var running sync.WaitGroup
	for _, e := range []*end{a, b} {
		defer e.conn.Close()
		e.writes, e.reads = rand.New(rand.NewPCG(r.Uint64(), 0)), rand.New(rand.NewPCG(r.Uint64(), 0))
		if err := e.prepare(r); err != nil {
			return Ending{}, err
		}
	}
	for _, e := range []*end{a, b} {
		running.Go(e.receive)
		running.Go(e.send)
	}
	running.Wait()
	ending := Ending{a.reset, b.reset}
	return ending, errors.Join(check("to the endpoint", a, b), check("to the client", b, a))
}

// prepare sets the socket's buffer sizes, for some, and makes urgent bytes part of the data that is read.
func (e *end) prepare(r *rand.Rand) (err error) {
	if e.small {
		err = errors.Join(e.conn.SetReadBuffer(2048<<r.IntN(7)), e.conn.SetWriteBuffer(2048<<r.IntN(7)))
	}
	raw, failed := e.conn.SyscallConn()
	if failed == nil {
		failed = raw.Control(func(fd uintptr) {
			err = errors.Join(err, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_OOBINLINE, 1))
		})
	}
	return errors.Join(err, failed, e.conn.SetWriteDeadline(time.Now().Add(2*patience)))
}

// send writes random bytes, and closes the direction.
func (e *end) send() {
	r := e.writes
	most := 20
	if e.small {
		most = 15 // the kernel may delay each ACK by 40 ms
	}
	bulk := r.IntN(2) == 0
	for range 1 + r.IntN(5) {
		if e.writeErr == nil && r.IntN(3) == 0 {
			e.writeUrgent()
		}
		if e.writeErr != nil {
			break
		}
		b := make([]byte, 1+r.IntN(1<<(1+r.IntN(most))))
		if bulk {
			b = make([]byte, 1<<most)
		}
		fill(r, b)
		n, err := e.conn.Write(b)
		e.wrote, e.writeErr = append(e.wrote, b[:n]...), err
		pauses(r)
	}
	if e.reset {
		_ = e.conn.SetLinger(0) // fails only if it is already closed
		e.conn.Close()
		return
	}
	if err := e.conn.CloseWrite(); e.writeErr == nil {
		e.writeErr = err
	}
}

// fill fills b with random bytes.
func fill(r *rand.Rand, b []byte) {
	for i := range b {
		if i%8 == 0 && i+8 <= len(b) {
			binary.NativeEndian.PutUint64(b[i:], r.Uint64())
		} else if i >= len(b)&^7 {
			b[i] = byte(i)
		}
	}
}

// writeUrgent waits while the socket's buffer is full.
func (e *end) writeUrgent() {
	raw, err := e.conn.SyscallConn()
	if err == nil {
		err = raw.Write(func(fd uintptr) bool {
			e.writeErr = unix.Send(int(fd), []byte{'!'}, unix.MSG_OOB|unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			return e.writeErr != unix.EAGAIN
		})
	}
	if e.writeErr = errors.Join(err, e.writeErr); e.writeErr == nil {
		e.wrote = append(e.wrote, '!')
	}
}

// receive reads to the end.
func (e *end) receive() {
	r := e.reads
	buf := make([]byte, 1<<(10+r.IntN(8)))
	slow := r.IntN(2) == 0
	last := time.Now()
	for {
		// Use separate deadlines: if an urgent byte is next and a signal pending, the kernel returns EAGAIN,
		// and net.TCPConn.Read waits for bytes that have already arrived.
		_ = e.conn.SetReadDeadline(time.Now().Add(time.Second))
		n, err := e.conn.Read(buf[:1+r.IntN(len(buf))])
		e.read = append(e.read, buf[:n]...)
		if n > 0 {
			last = time.Now()
		}
		if errors.Is(err, os.ErrDeadlineExceeded) && time.Since(last) < patience {
			continue
		}
		if err != nil {
			e.readErr = err
			return
		}
		if slow {
			pauses(r)
		}
	}
}

// pauses sometimes sleeps for up to 1 ms.
func pauses(r *rand.Rand) {
	if r.IntN(64) == 0 {
		time.Sleep(time.Duration(r.IntN(1000)) * time.Microsecond)
	}
}

// check compares the bytes of one direction.
func check(way string, from, to *end) error {
	wrote, read := from.wrote, to.read
	switch {
	case !bytes.HasPrefix(wrote, read):
		return fmt.Errorf("%s: what was read (%d bytes) is not what was written (%d bytes)", way, len(read), len(wrote))
	case errors.Is(to.readErr, os.ErrDeadlineExceeded), errors.Is(from.writeErr, os.ErrDeadlineExceeded):
		return fmt.Errorf("%s: %d of %d bytes were read, and then nothing for %s: %w", way, len(read), len(wrote), patience, cmp.Or(to.readErr, from.writeErr))
	case from.reset || to.reset:
	case !errors.Is(to.readErr, io.EOF):
		return fmt.Errorf("%s: reading ended with %w after %d of %d bytes", way, to.readErr, len(read), len(wrote))
	case from.writeErr != nil:
		return fmt.Errorf("%s: writing: %w", way, from.writeErr)
	case len(read) < len(wrote):
		return fmt.Errorf("%s: %d of %d bytes were lost", way, len(wrote)-len(read), len(wrote))
	}
	if from.reset && errors.Is(to.readErr, io.EOF) && to.writeErr == nil {
		return fmt.Errorf("%s: a reset looks like the end", way)
	}
	return nil
}
