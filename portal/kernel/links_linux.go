package kernel

import (
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// links are the interfaces of a network namespace, updated by the kernel's events. A query for an interface takes the
// kernel's rtnl lock, which other programs can hold for seconds, such as a CNI that deletes a thousand interfaces. Only
// goroutines of links wait for it; byIndex never does.
type links struct {
	socket *nl.NetlinkSocket
	wanted chan struct{} // capacity 1

	mu    sync.Mutex // guards known; no system call is made while it is held
	known map[int]link
}

// link is an interface's name and kind.
type link struct{ name, kind string }

// firstLinks is how long watchLinks waits for the list of interfaces.
const firstLinks = time.Second

// watchLinks returns the links of the calling thread's network namespace, and watches them permanently. request is
// requestLinks, or a replacement in tests. Events and lists arrive by one socket, so the later of two reports on an
// interface is current.
func watchLinks(request func(*nl.NetlinkSocket) error) (*links, error) {
	s, err := subscribe(unix.NETLINK_ROUTE, nil, unix.RTNLGRP_LINK)
	if err != nil {
		return nil, err
	}
	l := &links{socket: s.socket, wanted: make(chan struct{}, 1), known: map[int]link{}}
	l.want()
	go func() {
		for range l.wanted {
			_ = request(l.socket) // on error, the next unknown interface requests the list again
		}
	}()
	listed := make(chan struct{})
	go l.receive(sync.OnceFunc(func() { close(listed) }))
	select {
	case <-listed:
	case <-time.After(firstLinks):
	}
	return l, nil
}

// requestLinks makes the kernel send all interfaces to a socket. It returns when the kernel has begun to.
func requestLinks(socket *nl.NetlinkSocket) error {
	r := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	r.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	return socket.Send(r)
}

// want requests the list of interfaces.
func (l *links) want() {
	select {
	case l.wanted <- struct{}{}:
	default:
	}
}

// byIndex returns the interface with an index. If it is unknown, byIndex requests the list.
func (l *links) byIndex(index int) (link, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	found, ok := l.known[index]
	if !ok {
		l.want()
	}
	return found, ok
}

// receive records the kernel's reports. It calls listed at the end of each list, or when the kernel refuses to send
// one.
func (l *links) receive(listed func()) {
	for {
		messages, from, err := l.socket.Receive()
		switch {
		case errors.Is(err, unix.ENOBUFS): // messages were lost
			l.want()
			continue
		case err != nil:
			return
		case from.Pid != nl.PidKernel:
			continue
		}
		for _, m := range messages {
			switch m.Header.Type {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				listed()
			case unix.RTM_NEWLINK, unix.RTM_DELLINK:
				l.note(m)
			}
		}
	}
}

// note records an interface that was added, changed or removed.
func (l *links) note(m syscall.NetlinkMessage) {
	header := unix.NlMsghdr(m.Header)
	about, err := netlink.LinkDeserialize(&header, m.Data)
	if err != nil || nl.DeserializeIfInfomsg(m.Data).Family != unix.AF_UNSPEC { // a bridge's event for one of its ports
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if m.Header.Type == unix.RTM_DELLINK {
		delete(l.known, about.Attrs().Index)
		return
	}
	l.known[about.Attrs().Index] = link{about.Attrs().Name, about.Type()}
}
