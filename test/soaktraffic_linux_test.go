package test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/test/lab"
)

// soakTime is how long the soak lasts; USHER_SOAK, a duration, makes it longer.
const soakTime = 2 * time.Minute

// soakers are how many connections are open at once.
const soakers = 40

var _ = Describe("mixed traffic with faults, for minutes", func() {
	It("arrives byte for byte, and leaves nothing behind", func() {
		d := soakTime
		if text := os.Getenv("USHER_SOAK"); text != "" {
			var err error
			d, err = time.ParseDuration(text)
			Expect(err).NotTo(HaveOccurred(), "USHER_SOAK")
		}
		l := lab.New()
		web := service{name: "web", clusterIP: clusterIP, port: 80}
		var endpoints []*soakEndpoint
		for n := range 3 {
			e := &soakEndpoint{ns: l.Pods, at: netip.AddrPortFrom(lab.Pod(n+1), 8080), broken: map[uint64]bool{}, open: map[*net.TCPConn]uint64{}}
			e.listen()
			endpoints = append(endpoints, e)
			web.endpoints = append(web.endpoints, e.at)
		}
		dir := manifestsDir()
		web.write(dir)
		u := startUsher(l.Node, dir, "--portal=nftables")
		pid := u.Command.Process.Pid
		pod, node := l.Pods.NewDialer(soakers+10), l.Node.NewDialer(4)

		// What is opened once and kept is there after this.
		s := &soak{dialer: pod, vip: web.vip(), endpoints: endpoints}
		s.run(2 * time.Second)
		settled := func() (open float64) { return metric(node, "usher_connections_open") }
		Eventually(settled).WithTimeout(10 * time.Second).Should(BeZero())
		files, goroutines := descriptors(pid), metric(node, "go_goroutines")

		over := make(chan struct{})
		go func() {
			defer close(over)
			s.run(d)
		}()
		dying := time.NewTicker(900 * time.Millisecond)
		defer dying.Stop()
		for n := 0; ; n++ {
			select {
			case <-over:
			case <-dying.C:
				e := endpoints[n%len(endpoints)]
				e.die()
				time.Sleep(200 * time.Millisecond) // usher shall meet it dead
				e.listen()
				continue
			}
			break
		}

		AddReportEntry("soak", fmt.Sprintf("%d connections, %d MB: %v", s.total.Load(), s.bytes.Load()>>20, &s.kinds))
		Expect(s.failures).To(BeEmpty())
		for kind := range s.kinds {
			Expect(s.kinds[kind].Load()).To(BeNumerically(">", 10), "connections of kind %d", kind)
		}
		Eventually(settled).WithTimeout(10 * time.Second).Should(BeZero())
		Eventually(func() int { return descriptors(pid) }).WithTimeout(10 * time.Second).Should(BeNumerically("<=", files))
		Eventually(func() float64 { return metric(node, "go_goroutines") }).WithTimeout(10 * time.Second).Should(BeNumerically("<=", goroutines+1))
	})
})

// What a connection of the soak does.
const (
	bothWays      = iota // both sides send at once, and end when they have sent all
	clientResets         // the client breaks off in the middle
	endpointReset        // the endpoint breaks off in the middle
	stalls               // both read with pauses
	smallTalk            // short messages to and fro
	halfClosed           // the client ends at once and reads on
	soakKinds
)

// soakHeader is what a client sends first: what the connection is to do, and with
// which bytes.
type soakHeader struct {
	Seed                 uint64
	Kind                 uint64
	ToEndpoint, ToClient uint64 // bytes
}

// stream returns the bytes that one side sends.
func (h soakHeader) stream(side byte) *rand.ChaCha8 {
	seed := [32]byte{0: side}
	binary.BigEndian.PutUint64(seed[8:], h.Seed)
	return rand.NewChaCha8(seed)
}

// soak are the clients.
type soak struct {
	dialer    *lab.Dialer
	vip       string
	endpoints []*soakEndpoint

	total, bytes atomic.Int64
	kinds        [soakKinds]atomic.Int64
	mu           sync.Mutex
	failures     []string
}

func (s *soak) run(d time.Duration) {
	end := time.Now().Add(d)
	var clients sync.WaitGroup
	for range soakers {
		clients.Go(func() {
			for time.Now().Before(end) {
				h := soakHeader{Seed: rand.Uint64(), Kind: rand.Uint64N(soakKinds), ToEndpoint: size(), ToClient: size()}
				if err := s.one(h); err != nil && (errors.Is(err, errBytes) || !s.broken(h.Seed)) {
					s.mu.Lock()
					s.failures = append(s.failures, fmt.Sprintf("%+v: %v", h, err))
					s.mu.Unlock()
				}
				s.total.Add(1)
				s.kinds[h.Kind].Add(1)
			}
		})
	}
	clients.Wait()
}

// size returns a number of bytes: mostly few, sometimes many.
func size() uint64 { return rand.Uint64N(1 << (4 + rand.Uint64N(19))) }

// broken reports whether an endpoint has broken a connection off: one that it
// served, or one that it had not accepted yet when it died.
func (s *soak) broken(seed uint64) bool {
	served := false
	for _, e := range s.endpoints {
		e.mu.Lock()
		broken, known := e.broken[seed]
		e.mu.Unlock()
		if broken {
			return true
		}
		served = served || known
	}
	return !served
}

// one makes one connection.
func (s *soak) one(h soakHeader) error {
	c, err := s.dialer.Dial("", s.vip, 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(60 * time.Second))
	if err := binary.Write(c, binary.BigEndian, h); err != nil {
		return err
	}
	switch h.Kind {
	case smallTalk:
		return talk(c, h, 'c', 'e')
	case clientResets:
		_, err := io.CopyN(c, h.stream('c'), int64(h.ToEndpoint/2))
		_ = c.SetLinger(0)
		return err
	case halfClosed:
		if err := c.CloseWrite(); err != nil {
			return err
		}
		return s.receive(c, h)
	}
	var sent error
	var sending sync.WaitGroup
	sending.Go(func() {
		_, sent = io.CopyN(c, h.stream('c'), int64(h.ToEndpoint))
		if sent == nil {
			sent = c.CloseWrite()
		}
	})
	err = s.receive(c, h)
	sending.Wait()
	if h.Kind == endpointReset {
		// Of two calls that meet a reset, the kernel tells one. The other meets what
		// looks like an end.
		if told := errors.Is(err, syscall.ECONNRESET) || errors.Is(sent, syscall.ECONNRESET); !told || errors.Is(err, errBytes) {
			return fmt.Errorf("the endpoint's reset arrived as %v, %v", err, sent)
		}
		return nil
	}
	return errors.Join(err, sent)
}

func (s *soak) receive(c *net.TCPConn, h soakHeader) error {
	n, err := expectStream(c, h.stream('e'), h.ToClient, h.Kind == stalls)
	s.bytes.Add(n)
	return err
}

// errBytes says that other bytes arrived than were sent.
var errBytes = errors.New("wrong bytes")

// expectStream reads until the other side ends, and compares.
func expectStream(c io.Reader, want *rand.ChaCha8, size uint64, pauses bool) (total int64, err error) {
	got, expected := make([]byte, 64<<10), make([]byte, 64<<10)
	for {
		n, err := c.Read(got)
		_, _ = want.Read(expected[:n])
		if !bytes.Equal(got[:n], expected[:n]) {
			return total, fmt.Errorf("%w in the %d before %d", errBytes, n, total+int64(n))
		}
		total += int64(n)
		switch {
		case err == io.EOF && uint64(total) == size:
			return total, nil
		case err == io.EOF:
			return total, fmt.Errorf("%w after %d of %d bytes", io.ErrUnexpectedEOF, total, size)
		case err != nil:
			return total, err
		}
		if pauses && rand.IntN(20) == 0 {
			time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
		}
	}
}

// talk sends 50 messages, and expects one for each, before or after.
func talk(c net.Conn, h soakHeader, mine, others byte) error {
	out, in := h.stream(mine), h.stream(others)
	buf, want := make([]byte, 100), make([]byte, 100)
	for n := range 50 {
		for turn := range 2 {
			if (turn == 0) == (mine == 'c') {
				_, _ = out.Read(buf)
				if _, err := c.Write(buf); err != nil {
					return err
				}
				continue
			}
			if _, err := io.ReadFull(c, buf); err != nil {
				return fmt.Errorf("message %d: %w", n, err)
			}
			if _, _ = in.Read(want); !bytes.Equal(buf, want) {
				return fmt.Errorf("message %d: %w", n, errBytes)
			}
		}
	}
	return nil
}

// soakEndpoint is a server that does what each client's header says.
type soakEndpoint struct {
	ns *lab.Namespace
	at netip.AddrPort

	mu       sync.Mutex
	listener net.Listener
	open     map[*net.TCPConn]uint64 // with the seed, once it is known
	broken   map[uint64]bool         // seeds of connections: whether it broke them off
}

func (e *soakEndpoint) listen() {
	l := e.ns.Listen(e.at.String())
	e.mu.Lock()
	e.listener = l
	e.mu.Unlock()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go e.serve(c.(*net.TCPConn))
		}
	}()
}

// die stops listening and resets what is open.
func (e *soakEndpoint) die() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.listener.Close()
	for c, seed := range e.open {
		e.broken[seed] = true
		_ = c.SetLinger(0)
		c.Close()
	}
}

func (e *soakEndpoint) serve(c *net.TCPConn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(60 * time.Second))
	var h soakHeader
	if binary.Read(c, binary.BigEndian, &h) != nil {
		return
	}
	e.mu.Lock()
	e.open[c], e.broken[h.Seed] = h.Seed, false
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		delete(e.open, c)
		e.mu.Unlock()
	}()
	switch h.Kind {
	case smallTalk:
		_ = talk(c, h, 'e', 'c') // the client tells what is wrong
		return
	case endpointReset:
		_, _ = io.CopyN(c, h.stream('e'), int64(h.ToClient/2))
		_ = c.SetLinger(0)
		return
	}
	size := h.ToEndpoint
	if h.Kind == halfClosed {
		size = 0
	}
	var wrong error
	var receiving sync.WaitGroup
	receiving.Go(func() { _, wrong = expectStream(c, h.stream('c'), size, h.Kind == stalls) })
	_, err := io.CopyN(c, h.stream('e'), int64(h.ToClient))
	receiving.Wait()
	if wrong != nil && err == nil && h.Kind != clientResets {
		_ = c.SetLinger(0) // so that the client fails, too
		return
	}
	if err == nil {
		_ = c.CloseWrite()
	}
}
