package netns

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/address"
	"github.com/usherproxy/usher/portal/fdpass"
)

// helper is the state of the helper process, which holds the namespace.
type helper struct {
	portal  portal.Portal // nil until the namespace is set up
	command command
}

// Inside is the main function of the helper that Start starts. It serves the maker of the namespace until the maker
// closes it or exits, and then kills all processes inside.
func Inside() error {
	var conns [2]*net.UnixConn
	for i := range conns { // in the order of ExtraFiles in Start
		unix.CloseOnExec(3 + i)
		var err error
		if conns[i], err = fdpass.Conn(os.NewFile(uintptr(3+i), "outside")); err != nil {
			return errors.New("internal command; run 'kubectl usher exec'")
		}
	}
	unix.CloseOnExec(5)
	// The command's orphans become children of this process.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming the parent of orphaned processes in the namespace: %w", err)
	}
	h := &helper{command: command{ended: os.NewFile(5, "ended"), childless: make(chan struct{})}}
	go h.serveCalls(conns[1])
	h.serveLine(conns[0])
	h.command.endAll()
	return nil
}

// setUp is the input for setting up a namespace. It is a struct since gob omits a pointer to an empty string.
type setUp struct{ ResolvConf string }

// request is a call from outside: one of its fields is set.
type request struct {
	SetUp  *setUp
	Listen *wanted
	Apply  *change
	Check  bool
	Look   bool // compare
	Start  *start
	Signal int
}

// answer is the result of a request.
type answer struct {
	Error       string
	Errno       unix.Errno // the errno in Error, or 0
	Binds       []portal.Bind
	Result      result
	Comparisons []portal.Comparison
}

// call makes a call, and returns the answer. Its error is the answer's, if that has one.
func (n *Namespace) call(r request) (answer, error) {
	n.callsMu.Lock()
	defer n.callsMu.Unlock()
	var a answer
	err := n.encoder.Encode(r)
	if err == nil {
		err = n.decoder.Decode(&a)
	}
	if err != nil {
		return a, fmt.Errorf("the helper in the namespace does not respond: %w", err)
	}
	if a.Error != "" {
		return a, &insideError{a.Error, a.Errno}
	}
	return a, nil
}

// insideError is an error of the helper.
type insideError struct {
	text  string
	errno unix.Errno
}

func (e *insideError) Error() string { return e.text }

func (e *insideError) Unwrap() error {
	if e.errno == 0 {
		return nil
	}
	return e.errno
}

// serveCalls answers calls, one after the other, until the other side has closed.
func (h *helper) serveCalls(conn *net.UnixConn) {
	decoder, encoder := gob.NewDecoder(conn), gob.NewEncoder(conn)
	for {
		var r request
		if decoder.Decode(&r) != nil {
			return
		}
		var a answer
		if err := h.answer(r, &a); err != nil {
			a.Error = err.Error()
			errors.As(err, &a.Errno)
		}
		if encoder.Encode(a) != nil {
			return
		}
	}
}

func (h *helper) answer(r request, a *answer) (err error) {
	ctx := context.Background()
	switch {
	case r.SetUp != nil:
		return h.setUp(ctx, r.SetUp.ResolvConf)
	case r.Listen != nil:
		a.Binds = h.portal.Listen(r.Listen.Service, r.Listen.Targets)
	case r.Apply != nil:
		a.Result = resultOf(h.portal.Apply(ctx, r.Apply.Set, r.Apply.Gone))
	case r.Check:
		a.Result = resultOf(h.portal.Check(ctx))
	case r.Look:
		a.Comparisons, err = h.portal.Compare(ctx)
	case r.Start != nil:
		return h.command.start(r.Start)
	case r.Signal != 0:
		return h.command.signal(unix.Signal(r.Signal))
	}
	return err
}

// setUp makes the namespace usable.
func (h *helper) setUp(ctx context.Context, resolvConf string) (err error) {
	if err := setUpLoopback(); err != nil {
		return err
	}
	if err := setUpNames(resolvConf); err != nil {
		return err
	}
	h.portal, err = address.Mode.New(ctx, portal.Options{})
	return err
}
