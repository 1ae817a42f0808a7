package search

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/outcome"
)

// Results of a search that gives up. [Search.Failed] makes others, with the attempt's error.
var (
	noEndpoint   = outcome.Result{Outcome: outcome.NoEndpoint, Err: errors.New("the Service has no usable endpoint")}
	allFailed    = outcome.Result{Outcome: outcome.AttemptsFailed, Err: errors.New("every attempt failed")}
	queueTimeout = outcome.Result{Outcome: outcome.QueueTimeout, Err: errors.New("no endpoint had a free slot in time")}
	queueFull    = outcome.Result{Outcome: outcome.QueueTimeout, Err: fmt.Errorf("no endpoint had a free slot, and %d clients were already in the queue", balance.QueueLimit)} // the outcome QueueTimeout includes a full queue
)

// The most common errors of attempts.
var (
	errRefused  = errors.New("connection refused")
	ErrNoAnswer = errors.New("no answer") // within the attempt's time
)

// ResultOf returns the conn.Result for an attempt or a probe that ended with err; nil means success.
func ResultOf(err error) conn.Result {
	switch Plain(err) {
	case nil:
		return conn.Connected
	case errRefused:
		return conn.Refused
	case ErrNoAnswer:
		return conn.NoAnswer
	}
	return conn.Failed
}

// Plain returns a short error for a failed attempt: errRefused, ErrNoAnswer, the errno that err wraps, or err itself.
func Plain(err error) error {
	if err == nil {
		return nil
	}
	var errno syscall.Errno
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return errRefused
	case errors.As(err, &errno):
		return errno
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return ErrNoAnswer
	}
	return err
}

// EndpointAtFault reports whether the endpoint caused err, the error of an attempt. It is not to blame if this node is
// out of descriptors or memory, or if all other endpoints would fail as well; both end the search. Nor is it to blame
// if this node has no free port for connections to it, or no address of its family. Another endpoint may then work.
func EndpointAtFault(err error) bool {
	return !OutOfResources(err) && !futile(err) && !errors.Is(err, syscall.EADDRNOTAVAIL)
}

// futile reports whether err says that the other endpoints would almost certainly fail, too.
func futile(err error) bool {
	var f interface{ Futile() bool }
	return errors.As(err, &f) && f.Futile()
}

// OutOfResources reports whether err says that this node, and not the endpoint, has run out of descriptors or memory
// (see connect(2), socket(2)).
func OutOfResources(err error) bool {
	for _, errno := range []syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EAGAIN,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}
