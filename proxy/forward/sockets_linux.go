package forward

import "golang.org/x/sys/unix"

// Sockets is where the sockets of listeners come from: a call like socket(2).
// Nil is that call. Another one may make them in another network namespace than
// this process's, for which they then listen.
type Sockets func(domain, kind, protocol int) (fd int, err error)

func (s Sockets) open(domain, kind, protocol int) (fd int, err error) {
	if s == nil {
		return unix.Socket(domain, kind, protocol)
	}
	return s(domain, kind, protocol)
}
