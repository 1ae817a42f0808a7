package handover

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	lockName = "@usher-portal"
	network  = "unixpacket"

	wordHandOver = "hand over"
	wordTaken    = "taken"
	wordReleased = "released"

	// patience is how long one side waits for the other's next word. A successor
	// installs thousands of rules in it.
	patience = 30 * time.Second
	// maxPacket is more than that many names take.
	maxPacket = 64 << 10
)

// Lock is the right to manage the portals.
type Lock struct {
	listener *net.UnixListener
	serving  sync.WaitGroup
}

// Acquire takes the lock. The error wraps ErrLocked, and says who has it, if
// another process does.
func Acquire() (*Lock, error) {
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: lockName, Net: network})
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%w%s", ErrLocked, holder())
	case err != nil:
		return nil, fmt.Errorf("locking the portals: %w", err)
	}
	return &Lock{listener: l}, nil
}

// Release gives the lock back. It may be called more than once.
func (l *Lock) Release() {
	l.listener.Close()
	l.serving.Wait()
}

// Serve answers successors until the lock is released, one after the other.
func (l *Lock) Serve(h Holder) {
	l.serving.Go(func() {
		for {
			conn, err := l.listener.AcceptUnix()
			if err != nil {
				return
			}
			if l.answer(conn, h) {
				return
			}
		}
	})
}

// answer speaks with one successor, and reports whether that has taken over.
func (l *Lock) answer(conn *net.UnixConn, h Holder) (taken bool) {
	defer conn.Close()
	if !sameUser(conn) || receive(conn, wordHandOver) != nil {
		return false
	}
	sockets, resume, release, err := h.HandOver()
	if err != nil {
		return false
	}
	if sendSockets(conn, sockets) != nil || receive(conn, wordTaken) != nil {
		resume()
		return false
	}
	release()
	l.listener.Close()
	_ = send(conn, wordReleased) // it sees the lock in any case
	return true
}

// Successor is who is about to take over from another process.
type Successor struct {
	conn *net.UnixConn
	// Sockets are those of the holder, by name. Who uses one takes it out.
	Sockets map[string]*os.File
}

// Ask asks the holder of the lock to hand over, and returns when it has stopped
// changing things and its sockets are here. Take or Abort comes next.
func Ask() (*Successor, error) {
	conn, err := net.DialUnix(network, nil, &net.UnixAddr{Name: lockName, Net: network})
	if err != nil {
		return nil, fmt.Errorf("asking the usher that is here to hand over: %w", err)
	}
	s := &Successor{conn: conn, Sockets: map[string]*os.File{}}
	if !sameUser(conn) {
		// Anybody may bind the lock's name.
		err = fmt.Errorf("it is run by another user%s", holder())
	} else if err = send(conn, wordHandOver); err == nil {
		err = s.receiveSockets()
	}
	if err != nil {
		s.Abort()
		return nil, fmt.Errorf("the usher that is here does not hand over: %w", err)
	}
	return s, nil
}

// Take tells the holder that everything is in place, and returns the lock.
func (s *Successor) Take() (*Lock, error) {
	defer s.Abort()
	if err := send(s.conn, wordTaken); err != nil {
		return nil, fmt.Errorf("taking over: %w", err)
	}
	if err := receive(s.conn, wordReleased); err != nil {
		return nil, fmt.Errorf("taking over: the usher that was here has taken back its office: %w", err)
	}
	return Acquire()
}

// Abort lets the holder go on, unless it has been told to end, and closes the
// sockets that were not taken out.
func (s *Successor) Abort() {
	s.conn.Close()
	for name, f := range s.Sockets {
		f.Close()
		delete(s.Sockets, name)
	}
}

func (s *Successor) receiveSockets() error {
	buf := make([]byte, maxPacket)
	oob := make([]byte, unix.CmsgSpace(SocketsAtOnce*4))
	for {
		if err := s.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		n, oobn, flags, _, err := s.conn.ReadMsgUnix(buf, oob)
		if err != nil {
			return err
		}
		files, err := filesOf(oob[:oobn])
		if err != nil {
			return err
		}
		if n == 1 && buf[0] == '\n' {
			return nil
		}
		names := strings.Split(string(buf[:n]), "\n")
		if len(names) != len(files) || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
			for _, f := range files {
				f.Close()
			}
			return fmt.Errorf("%d sockets came with %d names", len(files), len(names))
		}
		for i, name := range names {
			s.Sockets[name] = files[i]
		}
	}
}

// filesOf returns the files that came with a packet.
func filesOf(oob []byte) (files []*os.File, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return nil, err
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "handed over"))
		}
	}
	return files, nil
}

// sendSockets sends sockets, and a line feed alone behind them.
func sendSockets(conn *net.UnixConn, sockets iter.Seq[Socket]) error {
	var batch []Socket
	var failed error
	for s := range sockets {
		batch = append(batch, s)
		if len(batch) < SocketsAtOnce {
			continue
		}
		if failed = sendBatch(conn, batch); failed != nil {
			break
		}
		batch = batch[:0]
	}
	if failed == nil && len(batch) > 0 {
		failed = sendBatch(conn, batch)
	}
	if failed != nil {
		return failed
	}
	return send(conn, "\n")
}

// sendBatch sends sockets in one packet, and closes this process's copies.
func sendBatch(conn *net.UnixConn, batch []Socket) error {
	var names []string
	var fds []int
	var failed error
	for _, s := range batch {
		defer s.File.Close()
		fd, err := descriptor(s.File)
		failed = errors.Join(failed, err)
		names, fds = append(names, s.Name), append(fds, fd)
	}
	if failed != nil {
		return failed
	}
	if err := conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, _, err := conn.WriteMsgUnix([]byte(strings.Join(names, "\n")), unix.UnixRights(fds...), nil)
	return err
}

// descriptor returns f's descriptor as it is: f.Fd might make the socket, which
// others use too, block.
func descriptor(f *os.File) (fd int, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	err = raw.Control(func(d uintptr) { fd = int(d) })
	return fd, err
}

func send(conn *net.UnixConn, word string) error {
	if err := conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, err := conn.Write([]byte(word))
	return err
}

// receive waits for a word.
func receive(conn *net.UnixConn, word string) error {
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	buf := make([]byte, 64)
	n, err := conn.Read(buf)
	if err != nil {
		return err
	}
	if !bytes.Equal(buf[:n], []byte(word)) {
		return fmt.Errorf("it said %q and not %q", buf[:n], word)
	}
	return nil
}

// sameUser reports whether the other side is run by the same user, or by root.
func sameUser(conn *net.UnixConn) bool {
	peer := peerOf(conn)
	return peer != nil && (peer.Uid == 0 || int(peer.Uid) == os.Geteuid())
}

func peerOf(conn *net.UnixConn) (peer *unix.Ucred) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil
	}
	if raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}) != nil || err != nil {
		return nil
	}
	return peer
}

// holder says who has the lock, if that can be found out.
func holder() string {
	conn, err := net.DialUnix(network, nil, &net.UnixAddr{Name: lockName, Net: network})
	if err != nil {
		return ""
	}
	defer conn.Close()
	peer := peerOf(conn)
	if peer == nil {
		return ""
	}
	return fmt.Sprintf(" (process %d of user %d)", peer.Pid, peer.Uid)
}
