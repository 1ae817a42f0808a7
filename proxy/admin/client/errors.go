package client

import (
	"errors"
	"fmt"
	"net/http"
	"syscall"

	"github.com/usherproxy/usher/proxy/admin/api"
)

// UnreachableError says that nobody answers at the address.
type UnreachableError struct {
	Address string
	Err     error
	Silent  bool // a process has accepted the connection, and did not answer in time
}

// Error implements error.
func (e *UnreachableError) Error() string {
	return fmt.Sprintf("cannot connect to usher at %s: %s", e.Address, Cause(e.Err))
}

// Unwrap returns what happened.
func (e *UnreachableError) Unwrap() error { return e.Err }

// Cause returns in a few words why nobody answered.
func Cause(err error) string {
	var unreachable *UnreachableError
	if errors.As(err, &unreachable) {
		err = unreachable.Err
	}
	for _, errno := range []syscall.Errno{syscall.ECONNREFUSED, syscall.ECONNRESET} {
		if errors.Is(err, errno) {
			return errno.Error()
		}
	}
	return err.Error()
}

// NotUsherError says that something else answers at the address, or an usher
// without this API.
type NotUsherError struct {
	Address string
	Status  string // "404 Not Found"
}

// Error implements error.
func (e *NotUsherError) Error() string {
	return fmt.Sprintf("the server at %s does not have usher's API (%s)", e.Address, e.Status)
}

// IsNotFound reports whether usher has answered that it does not know what was
// asked for.
func IsNotFound(err error) bool {
	var e *api.Error
	return errors.As(err, &e) && e.Code == http.StatusNotFound
}
