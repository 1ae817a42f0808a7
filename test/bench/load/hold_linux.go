package load

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"
)

// hold opens connections one after the other, exchanges a message on each, and keeps them open until in ends.
func hold(spec Spec, in io.Reader, out io.Writer) error {
	fmt.Fprintln(out, Began)
	began := time.Now()
	conns := make([]net.Conn, 0, spec.Clients)
	message := make([]byte, spec.Size)
	for range spec.Clients {
		conn, err := Exchange(spec.To, message)
		if err != nil {
			return fmt.Errorf("connection %d of %d: %w", len(conns)+1, spec.Clients, err)
		}
		conns = append(conns, conn)
	}
	fmt.Fprint(out, Ended, " ")
	if err := json.NewEncoder(out).Encode(Result{Seconds: time.Since(began).Seconds(), Done: int64(len(conns))}); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, in)
	for _, conn := range conns {
		conn.Close()
	}
	return err
}

// Exchange connects, sends the message, waits until as many bytes have come back, and returns the connection, which the
// caller must close. The total timeout is five seconds.
func Exchange(to netip.AddrPort, message []byte) (net.Conn, error) {
	const patience = 5 * time.Second
	conn, err := net.DialTimeout("tcp4", to.String(), patience)
	if err != nil {
		return nil, err
	}
	if err = conn.SetDeadline(time.Now().Add(patience)); err == nil {
		if _, err = conn.Write(message); err == nil {
			_, err = io.ReadFull(conn, message)
		}
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, conn.SetDeadline(time.Time{})
}
