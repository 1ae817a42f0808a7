package load

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// hold opens connections one after the other, exchanges a message on each, and
// keeps them until in ends.
func hold(spec Spec, in io.Reader, out io.Writer) error {
	fmt.Fprintln(out, Began)
	began := time.Now()
	fds := make([]int, 0, spec.Clients)
	message := make([]byte, spec.Size)
	for range spec.Clients {
		fd, err := Exchange(spec.To, message)
		if err != nil {
			return fmt.Errorf("connection %d of %d: %w", len(fds)+1, spec.Clients, err)
		}
		fds = append(fds, fd)
	}
	fmt.Fprint(out, Ended, " ")
	if err := json.NewEncoder(out).Encode(Result{Seconds: time.Since(began).Seconds(), Done: int64(len(fds))}); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, in)
	for _, fd := range fds {
		unix.Close(fd)
	}
	return err
}

// Exchange connects, sends the message, waits until as many bytes have come
// back, and returns the connection, which the caller closes. Each step may take
// five seconds.
func Exchange(to netip.AddrPort, message []byte) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	patience := unix.Timeval{Sec: 5}
	for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &patience); err != nil {
			return -1, err
		}
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}); err != nil {
		return -1, fmt.Errorf("connect to %s: %w", to, err)
	}
	if _, err := unix.Write(fd, message); err != nil {
		return -1, fmt.Errorf("send to %s: %w", to, err)
	}
	for missing := len(message); missing > 0; {
		n, err := unix.Read(fd, message[:missing])
		if err != nil {
			return -1, fmt.Errorf("receive from %s: %w", to, err)
		}
		if n == 0 {
			return -1, fmt.Errorf("receive from %s: closed too early", to)
		}
		missing -= n
	}
	return fd, nil
}
