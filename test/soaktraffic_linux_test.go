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
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/usherproxy/usher/test/lab"
)

// These are the kinds of connections in the soak.
const (
	bothWays      = iota // both sides send at once, and close when all is sent
	clientResets         // the client resets halfway
	endpointReset        // the endpoint resets halfway
	stalls               // both read with pauses
	smallTalk            // short messages to and fro
	halfClosed           // the client half-closes at once and keeps reading
	soakKinds
)

// soakHeader is the first message of a client: the kind of the connection, and the seed and number of its bytes.
type soakHeader struct {
	Seed                 uint64
	Kind                 uint64
	ToEndpoint, ToClient uint64 // bytes
}

// stream returns the bytes that a side sends.
func (h soakHeader) stream(side byte) *rand.ChaCha8 {
	seed := [32]byte{0: side}
	binary.BigEndian.PutUint64(seed[8:], h.Seed)
	return rand.NewChaCha8(seed)
}

// soakers is the number of concurrent connections. There are half as many UDP clients.
const soakers = 40

// soakTraffic makes the client traffic.
type soakTraffic struct {
	dialer    *lab.Dialer
	node      *lab.Dialer // for requests to usher's admin address
	tcp, udp  []string    // VIPs
	seed      uint64
	endpoints []*soakEndpoint
	incidents *incidents

	total, bytes, exchanges, repeated atomic.Int64
	kinds                             [soakKinds]atomic.Int64
	mu                                sync.Mutex
	lost                              map[string]int // number of connections by reason
	failures                          []string
}

// start makes traffic until the returned function is called, which waits for the clients to stop.
func (s *soakTraffic) start() (end func()) {
	s.lost = map[string]int{}
	s.seed++ // seeds are unique per connection, so that endpoints can identify it
	seed, stop := s.seed, make(chan struct{})
	var clients sync.WaitGroup
	client := func(n int, do func(*rand.Rand)) {
		r := rand.New(rand.NewPCG(seed, uint64(n)))
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

// connection makes one connection and records its result.
func (s *soakTraffic) connection(r *rand.Rand) {
	h := soakHeader{Seed: r.Uint64(), Kind: r.Uint64N(soakKinds), ToEndpoint: size(r), ToClient: size(r)}
	began, vip := time.Now(), s.tcp[r.IntN(len(s.tcp))]
	from, err := s.one(vip, h)
	s.total.Add(1)
	s.kinds[h.Kind].Add(1)
	if err == nil {
		return
	}
	ended, why := time.Now(), ""
	if !errors.Is(err, errBytes) {
		why = s.excuse(h.Seed, vip, began, ended, from != nil, err)
	}
	if why != "" {
		s.excused(why)
		return
	}
	s.lose("connection %+v of %v to %s, begun %s, ended %s: %v; usher says: %s", h, from, vip, began.Format(clock), ended.Format(clock), err, s.inquire(from))
}

// inquire returns usher's record of a client's connection.
func (s *soakTraffic) inquire(client net.Addr) string {
	if client == nil {
		return "-"
	}
	text, err := s.get("/api/v1/connections?state=all&client=" + url.QueryEscape(client.String()))
	if err != nil {
		return err.Error()
	}
	return strings.Join(strings.Fields(text), " ")
}

// get returns usher's response at its admin address.
func (s *soakTraffic) get(path string) (string, error) {
	res, err := s.node.Client().Get("http://127.0.0.1:10249" + path)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return string(text), err
}

// clock is the time format of the page.
const clock = "15:04:05.000"

func (s *soakTraffic) excused(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost[why]++
}

func (s *soakTraffic) lose(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures = append(s.failures, fmt.Sprintf(format, args...))
}

// excuse returns the reason why a failed connection was lost, or "" if it should have succeeded.
// made reports whether the client's connect(2) succeeded.
func (s *soakTraffic) excuse(seed uint64, vip string, began, ended time.Time, made bool, err error) string {
	of, served := familyOf(vip), false
	for _, e := range s.endpoints {
		e.mu.Lock()
		broken := e.served[seed]
		lost := broken != nil && *broken
		e.mu.Unlock()
		if lost {
			return lostWithEndpoint
		}
		served = served || broken != nil
	}
	hit := func(kind incident) bool { return s.incidents.within(kind, of, began, ended) }
	// A connection that is established and reset at once may look like a failed connect.
	made = made || errors.Is(err, syscall.ECONNRESET)
	switch {
	case made && hit(usherKilled):
		return lostWithUsher
	case hit(nothingTracked):
		return lostUntracked
	case served: // despite other incidents, usher had found an endpoint
		return ""
	case hit(endpointKilled): // the endpoint had accepted, but read nothing
		return lostWithEndpoint
	case hit(noDescriptors):
		return lostWithoutDescriptors
	case !made && hit(rulesGone):
		return lostWithoutRules
	}
	return ""
}

// soakTries is the maximum number of times that a UDP client sends a datagram. Each try waits as long as resolvers do: on
// a busy machine answers may be late without being lost.
const soakTries = 4

// session is one UDP client with some exchanges.
func (s *soakTraffic) session(r *rand.Rand) {
	vip := s.udp[r.IntN(len(s.udp))]
	c, err := s.dialer.DialUDP("", vip)
	if err != nil {
		s.lose("UDP to %s: %v", vip, err)
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
		tries, out, err := s.exchange(c, sent)
		s.exchanges.Add(1)
		s.bytes.Add(int64(len(sent)))
		if tries == 1 && err == nil {
			time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond) // the client's pace
			continue
		}
		s.repeated.Add(1)
		of := familyOf(vip)
		switch {
		case errors.Is(err, errBytes):
		case err == nil && s.incidents.within(anyLoss, of, began, time.Now()):
			continue
		case n == 0 && s.incidents.within(rulesGone, of, began, out): // the kernel keeps the flow's wrong destination while the flow is in use
			s.excused(lostUDPWithoutRules)
			return
		}
		s.lose("UDP: exchange %d of %s with %s, begun %s, ended %s, after %d tries: %v; another answer: %v; usher says: %s",
			n, c.LocalAddr(), vip, began.Format(clock), time.Now().Format(clock), tries, err, another(c), s.inquire(c.LocalAddr()))
		return
	}
}

// another reports whether one more answer arrives, in which case the first was late and not lost.
func another(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	_, err := c.Read(make([]byte, 1))
	return err == nil
}

// exchange sends a datagram until it comes back. It returns how many times it was sent, and when the first send
// returned.
func (s *soakTraffic) exchange(c net.Conn, sent []byte) (tries int, first time.Time, err error) {
	buf := make([]byte, 64<<10)
	for tries = 1; tries <= soakTries; tries++ {
		if _, err = c.Write(sent); err != nil { // an ICMP error of the previous datagram
			_, err = c.Write(sent)
		}
		if tries == 1 {
			first = time.Now()
		}
		_ = c.SetReadDeadline(time.Now().Add(retryTime))
		for err == nil {
			var n int
			n, err = c.Read(buf)
			switch {
			case err != nil:
			case bytes.Equal(buf[:n], sent):
				return tries, first, nil
			case n < 4 || binary.BigEndian.Uint32(buf) >= binary.BigEndian.Uint32(sent):
				return tries, first, fmt.Errorf("%w: %d of %d", errBytes, n, len(sent))
			}
		}
	}
	return soakTries, first, err
}

// size returns a random number of bytes: mostly few, sometimes many.
func size(r *rand.Rand) uint64 { return r.Uint64N(1 << (4 + r.Uint64N(19))) }

// one makes one connection. It returns the client's address, or nil if it could not connect, and any error.
func (s *soakTraffic) one(vip string, h soakHeader) (from net.Addr, err error) {
	c, err := s.dialer.Dial("", vip, 20*time.Second)
	if err != nil {
		return nil, err
	}
	return c.LocalAddr(), s.converse(c, h)
}

// converse runs the exchange that the header describes and closes the connection.
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
		// If two calls meet a reset, the kernel reports it to only one of them. The other sees an EOF.
		if wasReset := errors.Is(err, syscall.ECONNRESET) || errors.Is(sent, syscall.ECONNRESET); !wasReset || errors.Is(err, errBytes) {
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

// errBytes is returned if received bytes differ from the sent ones.
var errBytes = errors.New("wrong bytes")

// expectStream reads until the other side closes, and compares the bytes.
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

// talk sends 50 messages, and expects one message before or after each.
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

// soakEndpoint is a server that acts as each client's header requests, and echoes datagrams.
type soakEndpoint struct {
	ns      *lab.Namespace
	at      netip.Addr
	clients *soakTraffic

	mu       sync.Mutex
	listener net.Listener
	packets  *net.UDPConn
	open     map[*net.TCPConn]*bool // whether the endpoint reset it
	served   map[uint64]*bool       // the same by seed, for connections whose header was read
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
	lab.Serve(l, func(c net.Conn) { e.serve(l, c.(*net.TCPConn)) })
}

// leave stops listening. Open connections continue.
func (e *soakEndpoint) leave() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.listener.Close()
	e.packets.Close()
}

// die stops listening and resets open connections.
func (e *soakEndpoint) die() {
	e.leave()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.listener = nil
	for c, broken := range e.open {
		*broken = true
		_ = c.SetLinger(0)
		c.Close()
	}
}

// check records a failure if the endpoint received wrong bytes. The client records all other errors.
func (e *soakEndpoint) check(h soakHeader, err error) {
	if errors.Is(err, errBytes) {
		e.clients.lose("connection %+v at %s, %s: %v", h, e.at, time.Now().Format(clock), err)
	}
}

func (e *soakEndpoint) serve(l net.Listener, c *net.TCPConn) {
	broken := new(bool)
	e.mu.Lock()
	if e.open[c] = broken; e.listener != l {
		_ = c.SetLinger(0) // the endpoint has just died
		c.Close()
	}
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		delete(e.open, c)
		e.mu.Unlock()
	}()
	_ = c.SetDeadline(time.Now().Add(60 * time.Second))
	var h soakHeader
	if binary.Read(c, binary.BigEndian, &h) != nil {
		return
	}
	e.mu.Lock()
	e.served[h.Seed] = broken
	e.mu.Unlock()
	switch h.Kind {
	case smallTalk:
		e.check(h, talk(c, h, 'e', 'c'))
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
	e.check(h, wrong)
	if wrong != nil && err == nil && h.Kind != clientResets {
		_ = c.SetLinger(0) // makes the client fail, too
		return
	}
	if err == nil {
		_ = c.CloseWrite()
	}
}
