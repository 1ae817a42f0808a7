//go:build !linux

package handover

import (
	"errors"
	"os"
)

// Lock is the right to manage the portals. Other systems have no portal that
// installs anything, so there is nothing to lock.
type Lock struct{}

// Acquire takes the lock.
func Acquire(*os.File) (*Lock, error) { return &Lock{}, nil }

// Claimed is never so.
func Claimed() bool { return false }

// File returns nil.
func (l *Lock) File() *os.File { return nil }

// Strangers are none.
func (l *Lock) Strangers() []string { return nil }

// Release gives the lock back.
func (l *Lock) Release() {}

// Serve has no successor to answer.
func (l *Lock) Serve(Holder) {}

// Successor is who is about to take over from another process.
type Successor struct {
	Sockets map[string]*os.File
}

// Ask finds nobody to take over from.
func Ask() (*Successor, error) { return nil, errors.New("handover requires Linux") }

// More is never called.
func (s *Successor) More() error { return nil }

// Take is never called.
func (s *Successor) Take() (*Lock, error) { return &Lock{}, nil }

// Memory makes none.
func Memory(string) (*os.File, error) { return nil, errors.New("handover requires Linux") }

// Abort is never called.
func (s *Successor) Abort() {}
