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
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/usherproxy/usher/test/lab"
)

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

// soakers are how many connections, and half as many UDP clients, are open at once.
const soakers = 40

// soakTraffic are the clients.
type soakTraffic struct {
	dialer    *lab.Dialer
	tcp, udp  []string // VIPs
	seed      uint64
	endpoints []*soakEndpoint
	incidents *incidents

	total, bytes, exchanges, repeated atomic.Int64
	kinds                             [soakKinds]atomic.Int64
	mu                                sync.Mutex
	lost                              map[string]int // connections, by why
	failures                          []string
}

// start makes traffic until the function that it returns is called, which waits for its end.
func (s *soakTraffic) start() (end func()) {
	s.lost = map[string]int{}
	stop := make(chan struct{})
	var clients sync.WaitGroup
	client := func(n int, do func(*rand.Rand)) {
		r := rand.New(rand.NewPCG(s.seed, uint64(n)))
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					do(r)
				}
			}
		})
	}
	for n := range soakers {
		client(n, s.connection)
		if n%2 == 0 {
			client(soakers+n, s.session)
		}
	}
	return sync.OnceFunc(func() { close(stop); clients.Wait() })
}

// connection makes one connection, and says what became of it.
func (s *soakTraffic) connection(r *rand.Rand) {
	h := soakHeader{Seed: r.Uint64(), Kind: r.Uint64N(soakKinds), ToEndpoint: size(r), ToClient: size(r)}
	began, vip := time.Now(), s.tcp[r.IntN(len(s.tcp))]
	made, err := s.one(vip, h)
	s.total.Add(1)
	s.kinds[h.Kind].Add(1)
	if err == nil {
		return
	}
	why := ""
	if !errors.Is(err, errBytes) {
		why = s.excuse(h.Seed, began, time.Now(), made, err)
	}
	s.lose(why, "connection %+v to %s, begun %s, ended %s: %v", h, vip, began.Format(clock), time.Now().Format(clock), err)
}

// clock is how the page tells times.
const clock = "15:04:05.000"

func (s *soakTraffic) lose(excuse, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if excuse != "" {
		s.lost[excuse]++
		return
	}
	s.failures = append(s.failures, fmt.Sprintf(format, args...))
}

// excuse returns why a connection was lost that failed, or "" if it should not have been.
func (s *soakTraffic) excuse(seed uint64, began, ended time.Time, made bool, err error) string {
	served := false
	for _, e := range s.endpoints {
		e.mu.Lock()
		broken, known := e.broken[seed]
		e.mu.Unlock()
		if broken {
			return lostWithEndpoint
		}
		served = served || known
	}
	// One that is made and reset at once may look like one that could not be made.
	made = made || errors.Is(err, syscall.ECONNRESET)
	switch {
	case made && s.incidents.within(usherKilled, began, ended):
		return lostWithUsher
	case !served && s.incidents.within(endpointKilled, began, ended):
		return lostWithEndpoint
	case s.incidents.within(rulesGone, began, began):
		return lostWithoutRules
	case s.incidents.within(nothingTranslated, began, ended):
		return lostAstray
	case s.incidents.within(noDescriptors, began, ended):
		return lostWithoutDescriptors
	}
	return ""
}

// How often a UDP client asks before it gives up, and how long it waits for an answer.
const (
	soakTries    = 6
	soakPatience = 2 * time.Second
)

// session is one UDP client, with some exchanges.
func (s *soakTraffic) session(r *rand.Rand) {
	vip := s.udp[r.IntN(len(s.udp))]
	c, err := s.dialer.DialUDP("", vip)
	if err != nil {
		s.lose("", "UDP to %s: %v", vip, err)
		return
	}
	defer c.Close()
	for n := range 1 + r.IntN(50) {
		sent := make([]byte, 4+r.IntN(1<<(3+r.IntN(10))))
		binary.BigEndian.PutUint32(sent, uint32(n))
		for i := 4; i < len(sent); i++ {
			sent[i] = byte(r.Uint32())
		}
		began := time.Now()
		tries, err := s.exchange(c, sent)
		s.exchanges.Add(1)
		s.bytes.Add(int64(len(sent)))
		if tries == 1 && err == nil {
			time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond) // a client's pace
			continue
		}
		s.repeated.Add(1)
		why := ""
		switch {
		case errors.Is(err, errBytes):
		case err == nil && s.incidents.within(anyLoss, began, time.Now()):
			continue
		case s.incidents.within(rulesGone, began, began), s.incidents.within(nothingTranslated, began, began):
			why = lostUDPWithoutRules
		}
		s.lose(why, "UDP: exchange %d of %s with %s, begun %s, after %d tries: %v", n, c.LocalAddr(), vip, began.Format(clock), tries, err)
		return
	}
}

// exchange sends a datagram until it comes back, and returns how often it was sent.
func (s *soakTraffic) exchange(c net.Conn, sent []byte) (tries int, err error) {
	buf := make([]byte, 64<<10)
	for tries = 1; tries <= soakTries; tries++ {
		if _, err = c.Write(sent); err != nil { // what ICMP has said of the one before
			_, err = c.Write(sent)
		}
		_ = c.SetReadDeadline(time.Now().Add(soakPatience))
		for err == nil {
			var n int
			n, err = c.Read(buf)
			switch {
			case err != nil:
			case bytes.Equal(buf[:n], sent):
				return tries, nil
			case n < 4 || binary.BigEndian.Uint32(buf) >= binary.BigEndian.Uint32(sent):
				return tries, fmt.Errorf("%w: %d of %d", errBytes, n, len(sent))
			}
		}
	}
	return soakTries, err
}

// size returns a number of bytes: mostly few, sometimes many.
func size(r *rand.Rand) uint64 { return r.Uint64N(1 << (4 + r.Uint64N(19))) }

// one makes one connection. It reports whether the connection was made, and what was
// wrong with it.
func (s *soakTraffic) one(vip string, h soakHeader) (made bool, err error) {
	c, err := s.dialer.Dial("", vip, 20*time.Second)
	if err != nil {
		return false, err
	}
	return true, s.converse(c, h)
}

// converse does as the header says, and closes the connection.
func (s *soakTraffic) converse(c *net.TCPConn, h soakHeader) error {
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
	err := s.receive(c, h)
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

func (s *soakTraffic) receive(c *net.TCPConn, h soakHeader) error {
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

// soakEndpoint is a server that does what each client's header says, and sends datagrams
// back.
type soakEndpoint struct {
	ns *lab.Namespace
	at netip.Addr

	mu       sync.Mutex
	listener net.Listener
	packets  *net.UDPConn
	open     map[*net.TCPConn]uint64 // with the seed, once it is known
	broken   map[uint64]bool         // seeds of connections: whether it broke them off
}

// The ports of the soak's endpoints.
const soakTCP, soakUDP = 8080, 5300

func (e *soakEndpoint) tcp() netip.AddrPort { return netip.AddrPortFrom(e.at, soakTCP) }
func (e *soakEndpoint) udp() netip.AddrPort { return netip.AddrPortFrom(e.at, soakUDP) }

func (e *soakEndpoint) listen() {
	l, packets := e.ns.Listen(e.tcp().String()), e.ns.ListenUDP(e.udp().String())
	e.mu.Lock()
	e.listener, e.packets = l, packets
	e.mu.Unlock()
	serveEcho(packets, e.udp())
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

// leave stops listening. Connections that are open go on.
func (e *soakEndpoint) leave() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.listener.Close()
	e.packets.Close()
}

// die stops listening and resets what is open.
func (e *soakEndpoint) die() {
	e.leave()
	e.mu.Lock()
	defer e.mu.Unlock()
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
