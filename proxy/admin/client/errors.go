package client

import (
	"errors"
	"fmt"
	"net/http"
	"syscall"

	"github.com/usherproxy/usher/proxy/admin/api"
)

// UnreachableError means that no server answers at the address.
type UnreachableError struct {
	Address string
	Err     error
	Silent  bool // a process accepted the connection, but did not answer in time
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("cannot connect to usher at %s: %s", e.Address, Cause(e.Err))
}

func (e *UnreachableError) Unwrap() error { return e.Err }

// Cause returns in a few words why there was no answer. A node may have sent the text, so it is cleaned.
func Cause(err error) string {
	if unreachable, ok := errors.AsType[*UnreachableError](err); ok {
		err = unreachable.Err
	}
	for _, errno := range []syscall.Errno{syscall.ECONNREFUSED, syscall.ECONNRESET} {
		if errors.Is(err, errno) {
			return errno.Error()
		}
	}
	return api.Clean(err.Error())
}

// NotUsherError means that another program answers at the address, or an usher process without this API.
type NotUsherError struct {
	Address string
	Status  string // "404 Not Found"
}

func (e *NotUsherError) Error() string {
	return fmt.Sprintf("the server at %s does not have usher's API (%s)", e.Address, e.Status)
}

// IsNotFound reports whether usher answered that the object does not exist.
func IsNotFound(err error) bool {
	var e *api.Error
	return errors.As(err, &e) && e.Code == http.StatusNotFound
}
