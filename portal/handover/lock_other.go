//go:build !linux

package handover

import (
	"errors"
	"os"
)

// Lock is the exclusive permission to manage the portals. On systems other than Linux no portal installs anything, so
// there is nothing to lock.
type Lock struct{}

// Acquire always succeeds, and Ask always fails: there is no other holder.

func Acquire(*os.File) (*Lock, error) { return &Lock{}, nil }
func Claimed() bool                   { return false }
func Unclaimed() <-chan struct{}      { return nil }

func (l *Lock) File() *os.File      { return nil }
func (l *Lock) Strangers() []string { return nil }
func (l *Lock) Release()            {}
func (l *Lock) Serve(Holder)        {}

// Successor is a process that is about to take over from another one.
type Successor struct {
	Sockets map[string]*os.File
}

func Ask() (*Successor, error)            { return nil, errors.New("handover requires Linux") }
func (s *Successor) More() error          { return nil }
func (s *Successor) Take() (*Lock, error) { return &Lock{}, nil }
func (s *Successor) Abort()               {}

// Memory returns an error.
func Memory(string) (*os.File, error) { return nil, errors.New("handover requires Linux") }
