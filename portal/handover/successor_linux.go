package handover

import (
	"errors"
	"fmt"
	"iter"
	"os"
	"strings"

	"github.com/usherproxy/usher/portal/fdpass"
)

// Successor is a process that is about to take over from another one.
type Successor struct {
	peer peer
	// Sockets are the holder's, by name. The caller removes those that it uses.
	Sockets map[string]*os.File
}

// Ask asks the holder of the lock to hand over. It returns when the holder has stopped making changes and its sockets
// have arrived. The caller then calls Take or Abort.
func Ask() (*Successor, error) {
	holder, _, err := look("", wordHandOver)
	if err == nil && holder == nil {
		err = errors.New("no usher process found")
	}
	if err != nil {
		return nil, fmt.Errorf("asking the running usher to hand over: %w", err)
	}
	s := &Successor{peer: holder.peer, Sockets: map[string]*os.File{}}
	err = holder.theirs.sign(holder.name, bySuccessor)
	holder.theirs.close()
	holder.ours.close()
	if err == nil {
		s.peer.within(stepTimeout)
		err = s.peer.send(wordSigned)
	}
	if err == nil {
		err = s.receiveSockets()
	}
	if err != nil {
		s.Abort()
		return nil, fmt.Errorf("the running usher instance did not hand over: %w", err)
	}
	return s, nil
}

// More adds to Sockets those that the holder added since Ask. It may be called once, before Take.
func (s *Successor) More() error {
	s.peer.within(stepTimeout)
	if err := s.peer.send(wordMore); err != nil {
		return fmt.Errorf("requesting changes from the running usher: %w", err)
	}
	return s.receiveSockets()
}

// Take notifies the holder that all rules are installed, and returns the lock.
func (s *Successor) Take() (*Lock, error) {
	defer s.Abort()
	// Listen before the holder releases its lock, so that a process that looks for holders finds one of the two.
	l, err := Hold(nil)
	if err != nil {
		return nil, fmt.Errorf("taking over: %w", err)
	}
	s.peer.within(stepTimeout)
	if err = s.peer.send(wordTaken); err == nil {
		if _, err = s.peer.receiveWord(wordReleased); err != nil {
			err = fmt.Errorf("the previous usher process did not confirm that it released the portals: %w", err)
		}
	}
	if err != nil {
		l.Release()
		return nil, fmt.Errorf("taking over: %w", err)
	}
	return l, nil
}

// Abort closes the connection and the sockets that remain in Sockets. The holder continues, unless Take succeeded.
func (s *Successor) Abort() {
	s.peer.Close()
	for name, f := range s.Sockets {
		f.Close()
		delete(s.Sockets, name)
	}
}

func (s *Successor) receiveSockets() error {
	for {
		text, fds, err := s.peer.receive()
		if err != nil {
			return err
		}
		if text == "\n" {
			Discard(fds)
			return nil
		}
		names := strings.Split(text, "\n")
		if len(names) != len(fds) {
			Discard(fds)
			return fmt.Errorf("got %d sockets with %d names", len(fds), len(names))
		}
		for i, name := range names {
			s.Sockets[name] = os.NewFile(uintptr(fds[i]), "handed over")
		}
	}
}

// sendSockets sends sockets, and then a packet that is a single line feed, which marks the end.
func sendSockets(p peer, sockets iter.Seq[Socket]) error {
	var batch []Socket
	var failed error
	names := 0 // their length in bytes, with separators
	for s := range sockets {
		batch = append(batch, s)
		if names += len(s.Name) + 1; len(batch) < SocketsAtOnce && names < maxPacket/2 {
			continue
		}
		if failed = sendBatch(p, batch); failed != nil {
			break
		}
		batch, names = batch[:0], 0
	}
	if failed == nil && len(batch) > 0 {
		failed = sendBatch(p, batch)
	}
	if failed != nil {
		return failed
	}
	return p.send("\n")
}

// sendBatch sends sockets in one packet, and closes their files.
func sendBatch(p peer, batch []Socket) error {
	var names []string
	var fds []int
	var failed error
	for _, s := range batch {
		defer s.File.Close()
		fd, err := fdpass.Descriptor(s.File)
		failed = errors.Join(failed, err)
		names, fds = append(names, s.Name), append(fds, fd)
	}
	if failed != nil {
		return failed
	}
	return p.send(strings.Join(names, "\n"), fds...)
}
