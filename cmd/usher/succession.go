package main

import (
	"context"
	"iter"
	"time"

	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/proxy"
)

// settle tries again, for some time, what could not be done while the other usher
// was there: not every socket is handed over. It also finds what that one changed
// after this one had looked first.
func (s *server) settle() {
	for range 20 {
		s.proxy.Check(context.Background())
		if s.proxy.Stats().Problems[proxy.ReasonListen] == 0 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// succeed asks the usher that is here to hand over, or takes the lock if that
// one has ended meanwhile, or is about to: for some time it tries again.
func (s *server) succeed() (successor *handover.Successor, err error) {
	for deadline := time.Now().Add(successionTime); ; time.Sleep(100 * time.Millisecond) {
		if successor, err = handover.Ask(); err == nil {
			return successor, nil
		}
		if lock, err := acquireLock(s.log); err == nil {
			s.lock.Store(lock)
			return nil, nil
		}
		if time.Now().After(deadline) {
			return nil, err
		}
	}
}

// successionTime is how long an usher may take to say whether it hands over.
const successionTime = 10 * time.Second

// HandOver implements handover.Holder.
func (s *server) HandOver() (sockets iter.Seq[handover.Socket], resume, release func(), err error) {
	sockets, resume, stop, err := s.proxy.HandOver()
	return sockets, resume, func() {
		close(s.handedOver)
		stop()
	}, err
}

func (s *server) unlock() {
	if lock := s.lock.Load(); lock != nil {
		lock.Release()
	}
}

func (s *server) isHandedOver() bool {
	select {
	case <-s.handedOver:
		return true
	default:
		return false
	}
}
