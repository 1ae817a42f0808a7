package datagram

import (
	"cmp"
	"encoding/json"
	"iter"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/outcome"
)

// A UDP listener is handed over with its socket, and each session with its socket to the endpoint. So the client keeps
// its endpoint, which sees the same address and port as before.
//
// Most sessions are handed over together with the listeners' sockets, while this process still receives. Each reply
// from their endpoints arrives at one of the two processes, which forwards it. When the successor is ready, this
// process stops receiving and hands over the other sessions: new ones, and those without an answer. Only then does the
// successor start to receive. So it knows the sessions of all clients. Datagrams that arrive in between wait in the
// sockets.
//
// Once the successor has taken over, this process only forwards the replies that clients wait for. It sends them
// through the same socket, so they come from the address that the clients expect.

// replyTime is the time for endpoints to send those replies.
const replyTime = 2 * time.Second

// HandOver implements frontend.Listener. If the socket cannot be copied, the successor opens a new one.
func (l *listener) HandOver() (handover.Socket, bool) {
	return frontend.SocketFor(l.socket.fd, l.name())
}

func (l *listener) name() string { return frontend.SocketName(config.UDP, l.At) }

// sessionRecord is a session in a handover. Its JSON, after sessionPrefix, is the name of the socket that connects the
// session to its endpoint.
type sessionRecord struct {
	Socket    string         `json:"socket"` // the name of the listener's socket
	Peer      []byte         `json:"peer"`   // forward.Peer.Raw
	Local     netip.Addr     `json:"local"`
	Control   []byte         `json:"control"`
	To        netip.AddrPort `json:"to"`
	Endpoint  netip.AddrPort `json:"endpoint"`
	Hops      int16          `json:"hops"`
	Unreplied bool           `json:"asked"`
	Start     time.Time      `json:"began"`
	Silent    time.Duration  `json:"silent"` // since the last datagram, in nanoseconds
	Mute      bool           `json:"mute"`   // see session
	Ported    bool           `json:"ported"` // see takePort

	ToEndpoint, ToClient int64 // bytes so far

	file *os.File
}

const sessionPrefix = "udp session "

// copiedAtOnce is the number of sessions that are copied before the loop serves others.
const copiedAtOnce = 64

// Sessions yields sessions with copies of their sockets. The first call of a handover yields those whose endpoint has
// answered, and inherited ones. With last, Sessions first makes the listeners stop receiving, then yields the other
// sessions. If the handover fails, Resume makes the listeners receive again. Calls are serialized as for Listen.
func (srv *Server) Sessions(last bool) iter.Seq[handover.Socket] {
	return func(yield func(handover.Socket) bool) {
		if !last {
			srv.handover++
		}
		sockets := map[*socket]bool{}
		for l := range srv.listeners {
			sockets[l.socket] = true
		}
		for _, lp := range srv.loops {
			var all []*session
			lp.poller.Call(func() {
				for sk := range sockets {
					if last && sk.loop == lp && !sk.closed {
						sk.stopReceiving()
					}
				}
				for e := lp.sessions.Front(); e != nil; e = e.Next() {
					all = append(all, e.Value.(*session))
				}
			})
			for some := range slices.Chunk(all, copiedAtOnce) {
				var copies []handover.Socket
				lp.poller.Call(func() {
					for _, s := range some {
						if !sockets[s.socket] || s.fd < 0 || s.search != nil && !last || s.lingering || s.handover == srv.handover {
							continue // ended, ending, searching, handed over, or without a listener
						}
						if c, ok := s.handOver(); ok {
							copies = append(copies, c)
							s.handover = srv.handover
						}
					}
				})
				for i, c := range copies {
					if !yield(c) {
						for _, c := range copies[i+1:] {
							c.File.Close()
						}
						return
					}
				}
			}
		}
	}
}

// handOver returns a copy of the session's socket, named by its sessionRecord, or false if it cannot be copied.
func (s *session) handOver() (handover.Socket, bool) {
	s.catchUp() // brings s.last up to date
	toEndpoint, toClient := s.Bytes()
	text, err := json.Marshal(&sessionRecord{
		Socket: s.socket.listener.name(), Peer: s.key.peer.Raw(), Local: s.key.local, Control: s.control,
		To: s.To, Endpoint: s.Endpoint.Addr, Hops: s.hops, Unreplied: s.waits(), Start: s.Start, Silent: s.socket.loop.clock().Sub(s.last),
		Mute: s.search != nil || s.mute, Ported: s.portInSocket != nil, ToEndpoint: toEndpoint, ToClient: toClient,
	})
	if err != nil { // these types can always be encoded
		return handover.Socket{}, false
	}
	return frontend.SocketFor(s.fd, sessionPrefix+string(text))
}

// Resume makes the listeners receive again after a handover that failed. Callers are serialized as for Listen.
func (srv *Server) Resume() {
	for l := range srv.listeners {
		l.do(l.socket.open)
	}
}

// Inherit removes the sockets of a predecessor's sessions from the map sockets, and keeps them for the listeners. A
// listener adopts its sessions when it opens, at the latest in InheritRest. A listener with an inherited socket does
// not receive before InheritRest. Callers are serialized as for Listen.
func (srv *Server) Inherit(sockets map[string]*os.File) {
	if srv.sessionRecords == nil {
		srv.sessionRecords = map[string][]sessionRecord{}
	}
	for name, file := range sockets {
		text, is := strings.CutPrefix(name, sessionPrefix)
		if !is {
			continue
		}
		delete(sockets, name)
		b := sessionRecord{file: file}
		if err := json.Unmarshal([]byte(text), &b); err != nil { // written by another version of usher
			file.Close()
			continue
		}
		srv.sessionRecords[b.Socket] = append(srv.sessionRecords[b.Socket], b)
	}
	for _, all := range srv.sessionRecords {
		// As in a list of sessions: the longest idle first.
		slices.SortFunc(all, func(a, b sessionRecord) int { return cmp.Compare(b.Silent, a.Silent) })
	}
}

// InheritRest is Inherit for the sockets of the last part of a handover. Then it makes listeners with an inherited
// socket receive, and closes the sockets of sessions that no listener has adopted. Callers are serialized as for
// Listen.
func (srv *Server) InheritRest(sockets map[string]*os.File) {
	srv.Inherit(sockets)
	for l, waits := range srv.listeners {
		if l.adopt(); waits {
			srv.listeners[l] = false
			l.do(l.socket.open)
		}
	}
	for _, all := range srv.sessionRecords {
		for _, b := range all {
			b.file.Close()
		}
	}
	srv.sessionRecords = nil
}

// inheritedAtOnce is the number of sessions that one task continues. A round of a loop runs up to 8 tasks.
const inheritedAtOnce = sessionsPerTurn / 8

// adopt continues the sessions that a predecessor has handed over.
func (l *listener) adopt() {
	all := l.server.sessionRecords[l.name()]
	delete(l.server.sessionRecords, l.name())
	sk := l.socket
	var view *frontend.View
	var endpoints map[netip.AddrPort]*balance.Endpoint     // of view
	for some := range slices.Chunk(all, inheritedAtOnce) { // the loop serves others in between
		err := sk.loop.poller.Do(func() {
			if sk.refresh(); view != sk.view {
				view, endpoints = sk.view, make(map[netip.AddrPort]*balance.Endpoint, len(sk.view.All))
				for _, e := range view.All {
					endpoints[e.Addr] = e
				}
			}
			for _, b := range some {
				sk.adoptOne(&b, endpoints[b.Endpoint])
				b.file.Close()
			}
		})
		if err != nil { // the loop has ended
			for _, b := range some {
				b.file.Close()
			}
		}
	}
}

// adoptOne continues the session b if its client is still admitted, and its endpoint is still usable. endpoint is nil
// if it was removed.
func (sk *socket) adoptOne(b *sessionRecord, endpoint *balance.Endpoint) {
	s := &session{
		socket: sk, key: sessionKey{peer: forward.NewPeer(b.Peer), local: b.Local},
		control: b.Control, hops: b.Hops, fd: -1, unreplied: b.Unreplied, inherited: true,
	}
	now := sk.loop.clock()
	s.Conn = frontend.Conn{Record: &conn.Record{Port: sk.view.Clients, From: s.key.peer.AddrPort(), To: b.To, Start: b.Start}, Front: sk.front}
	s.last = now.Add(-max(b.Silent, 0))
	if _, r := s.Admit(sk.view, &sk.listener.Place); r.Outcome != outcome.Open || sk.closed {
		return
	}
	if !stays(endpoint) {
		return
	}
	if old := sk.sessions[s.key]; old != nil { // the predecessor had both, one after the other: the later one counts
		if !s.Start.After(old.Start) {
			return
		}
		old.end(outcome.Result{Outcome: outcome.EndpointRemoved})
	}
	fd, err := frontend.Own(b.file)
	if err != nil {
		return
	}
	watched, err := sk.loop.poller.Add(fd, forward.Readable, s)
	if err != nil {
		unix.Close(fd)
		return
	}
	s.watched, s.fd, s.Endpoint = watched, fd, endpoint
	s.Endpoint.Take()
	s.toEndpoint.Store(b.ToEndpoint)
	s.toClient.Store(b.ToClient)
	sk.enter(s)
	if b.Ported {
		s.takePort()
	}
	if s.mute = b.Mute; !s.mute {
		s.inheritedAnswered()
	}
}

// inheritedAnswered records that the endpoint of an inherited session has answered.
func (s *session) inheritedAnswered() {
	s.Endpoint.Connected.Add(1)
	s.Adopted(s.socket.loop.clock(), s.Endpoint.Addr, s.Endpoint.Pod)
}

// retire leaves the listener to a successor. It does not wait until the socket is closed; Server.Retired does.
func (l *listener) retire() {
	retiring := &l.server.retiring
	retiring.Add(1)
	if l.socket.loop.poller.Do(func() { l.socket.retire(retiring.Done) }) != nil {
		retiring.Done() // the loop has ended, and the socket with it
	}
}

// Retired waits until all sockets that were left to a successor are closed.
func (srv *Server) Retired() { srv.retiring.Wait() }

// retire stops receiving. When no client waits for a reply any longer, or after replyTime, it closes the socket and
// calls done.
func (sk *socket) retire(done func()) {
	if sk.closed {
		done()
		return
	}
	sk.stopReceiving()
	for e := sk.order.Front(); e != nil; e = e.Next() {
		if e.Value.(*session).waits() {
			sk.awaited++
		}
	}
	sk.retired = sync.OnceFunc(func() { sk.close(outcome.Drained, done) })
	if sk.awaited == 0 {
		sk.retired()
		return
	}
	time.AfterFunc(replyTime, func() { _ = sk.loop.poller.Do(sk.retired) })
}

// replied records, after retire, that one client fewer waits for a reply.
func (sk *socket) replied() {
	if sk.retired == nil {
		return
	}
	if sk.awaited--; sk.awaited == 0 {
		_ = sk.loop.poller.Do(sk.retired) // after this round, which sends replies at its end
	}
}
