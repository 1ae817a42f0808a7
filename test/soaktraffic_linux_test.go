package test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
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
	node      *lab.Dialer // who asks usher
	tcp, udp  []string    // VIPs
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
	s.seed++ // no two connections have the same seed: who serves one tells it by that
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

// connection makes one connection, and says what became of it.
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

// inquire returns what usher knows of a client's connection.
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

// get returns what usher answers at its admin address, if it does.
func (s *soakTraffic) get(path string) (string, error) {
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(_ context.Context, _, to string) (net.Conn, error) {
		return s.node.Dial("", to, time.Second)
	}}}
	res, err := c.Get("http://127.0.0.1:10249" + path)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return string(text), err
}

// clock is how the page tells times.
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

// excuse returns why a connection was lost that failed, or "" if it should not have been.
// made says that the client's connect(2) has succeeded.
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
	// One that is made and reset at once may look like one that could not be made.
	made = made || errors.Is(err, syscall.ECONNRESET)
	switch {
	case made && hit(usherKilled):
		return lostWithUsher
	case hit(nothingTracked):
		return lostUntracked
	case served: // whatever else there was, usher had found an endpoint
		return ""
	case hit(endpointKilled): // it had connected, and not read anything
		return lostWithEndpoint
	case hit(noDescriptors):
		return lostWithoutDescriptors
	case !made && hit(rulesGone):
		return lostWithoutRules
	}
	return ""
}

// soakTries is how often a UDP client asks before it gives up. It waits as long as resolvers do:
// on a busy machine answers are late that are not lost.
const soakTries = 4

// session is one UDP client, with some exchanges.
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
			time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond) // a client's pace
			continue
		}
		s.repeated.Add(1)
		of := familyOf(vip)
		switch {
		case errors.Is(err, errBytes):
		case err == nil && s.incidents.within(anyLoss, of, began, time.Now()):
			continue
		case n == 0 && s.incidents.within(rulesGone, of, began, out): // the kernel remembers that it leads elsewhere, as long as it is used
			s.excused(lostUDPWithoutRules)
			return
		}
		s.lose("UDP: exchange %d of %s with %s, begun %s, ended %s, after %d tries: %v; another answer: %v; usher says: %s",
			n, c.LocalAddr(), vip, began.Format(clock), time.Now().Format(clock), tries, err, another(c), s.inquire(c.LocalAddr()))
		return
	}
}

// another reports whether there is one more answer: if so, the first was not lost, but late.
func another(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	_, err := c.Read(make([]byte, 1))
	return err == nil
}

// exchange sends a datagram until it comes back, and returns how often it was sent, and until
// when for the first time.
func (s *soakTraffic) exchange(c net.Conn, sent []byte) (tries int, first time.Time, err error) {
	buf := make([]byte, 64<<10)
	for tries = 1; tries <= soakTries; tries++ {
		if _, err = c.Write(sent); err != nil { // what ICMP has said of the one before
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

// size returns a number of bytes: mostly few, sometimes many.
func size(r *rand.Rand) uint64 { return r.Uint64N(1 << (4 + r.Uint64N(19))) }

// one makes one connection. It returns from where, or nil if that could not be made, and
// what was wrong with it.
func (s *soakTraffic) one(vip string, h soakHeader) (from net.Addr, err error) {
	c, err := s.dialer.Dial("", vip, 20*time.Second)
	if err != nil {
		return nil, err
	}
	return c.LocalAddr(), s.converse(c, h)
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
	ns      *lab.Namespace
	at      netip.Addr
	clients *soakTraffic

	mu       sync.Mutex
	listener net.Listener
	packets  *net.UDPConn
	open     map[*net.TCPConn]*bool // whether it broke them off
	served   map[uint64]*bool       // the same, by seeds, of those whose header was read
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
			go e.serve(l, c.(*net.TCPConn))
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
	e.listener = nil
	for c, broken := range e.open {
		*broken = true
		_ = c.SetLinger(0)
		c.Close()
	}
}

// tell tells of other bytes than the client has sent. Of all else the client does.
func (e *soakEndpoint) tell(h soakHeader, err error) {
	if errors.Is(err, errBytes) {
		e.clients.lose("connection %+v at %s, %s: %v", h, e.at, time.Now().Format(clock), err)
	}
}

func (e *soakEndpoint) serve(l net.Listener, c *net.TCPConn) {
	defer c.Close()
	broken := new(bool)
	e.mu.Lock()
	if e.open[c] = broken; e.listener != l {
		_ = c.SetLinger(0) // it died just now
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
		e.tell(h, talk(c, h, 'e', 'c'))
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
	e.tell(h, wrong)
	if wrong != nil && err == nil && h.Kind != clientResets {
		_ = c.SetLinger(0) // so that the client fails, too
		return
	}
	if err == nil {
		_ = c.CloseWrite()
	}
}
