//go:build !linux

package handover

import (
	"errors"
	"os"
)

// Lock is the exclusive permission to manage the portals. On systems other than Linux no portal installs anything, so
// there is nothing to lock.
type Lock struct{}

// Acquire takes the lock.
func Acquire(*os.File) (*Lock, error) { return &Lock{}, nil }

// Claimed returns false.
func Claimed() bool { return false }

// Unclaimed returns nil.
func Unclaimed() <-chan struct{} { return nil }

// File returns nil.
func (l *Lock) File() *os.File { return nil }

// Strangers returns none.
func (l *Lock) Strangers() []string { return nil }

// Release does nothing.
func (l *Lock) Release() {}

// Serve does nothing: there are no successors.
func (l *Lock) Serve(Holder) {}

// Successor is a process that is about to take over from another one.
type Successor struct {
	Sockets map[string]*os.File
}

// Ask returns an error: there is no holder.
func Ask() (*Successor, error) { return nil, errors.New("handover requires Linux") }

// More is never called.
func (s *Successor) More() error { return nil }

// Take is never called.
func (s *Successor) Take() (*Lock, error) { return &Lock{}, nil }

// Memory returns an error.
func Memory(string) (*os.File, error) { return nil, errors.New("handover requires Linux") }

// Abort is never called.
func (s *Successor) Abort() {}
