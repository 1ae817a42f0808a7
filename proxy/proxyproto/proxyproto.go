// Package proxyproto reads and writes PROXY protocol headers, in which a proxy names the client of a connection
// (https://www.haproxy.org/download/2.6/doc/proxy-protocol.txt).
//
// It works on bytes and uses no sockets: the caller reads from the connection until [Complete] returns true, and then
// calls [Read]. config.Balancers decides which senders are trusted.
package proxyproto

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	pires "github.com/pires/go-proxyproto"

	"github.com/usherproxy/usher/config"
)

// MaxHeader is the maximum length of a header that is read, in bytes. A version 2 header with IPv6 addresses takes 52,
// one with Unix addresses 232. The rest is for extensions: names, identities, certificates.
const MaxHeader = 4 << 10

// Reasons to reject a header.
var (
	ErrMissing = errors.New("missing PROXY protocol header")
	ErrCut     = errors.New("PROXY protocol header is truncated")
	ErrTooLong = errors.New("PROXY protocol header is too long")
	ErrWrong   = errors.New("invalid PROXY protocol header")
	// ErrPanic means that the library which parses headers has panicked.
	ErrPanic = errors.New("PROXY protocol header parser failed")
)

// parse is the library's parser.
var parse = pires.Read

// Header returns the header for a connection or a datagram with source from and destination to; nil if version is 0.
func Header(version config.ProxyProtocol, protocol config.Protocol, from, to netip.AddrPort) []byte {
	if version == 0 {
		return nil
	}
	var source, destination net.Addr = net.TCPAddrFromAddrPort(from), net.TCPAddrFromAddrPort(to)
	if protocol == config.UDP {
		source, destination = net.UDPAddrFromAddrPort(from), net.UDPAddrFromAddrPort(to)
	}
	header, _ := pires.HeaderProxyFromAddrs(byte(version), source, destination).Format() // cannot fail with these addresses
	return header
}

// Complete reports whether first, the beginning of a connection, is enough for Read: it has the whole header, or cannot
// become one.
func Complete(first []byte) bool {
	n, err := length(first)
	return n > 0 || err != nil
}

// Read returns the client that the header at the start of first names, and the header's length. The client is not valid
// if the header names none: the sender is the client itself, or the client has no Internet address. The error is or
// wraps one of those above.
func Read(first []byte) (client netip.AddrPort, n int, err error) {
	switch n, err = length(first); {
	case err != nil:
		return client, 0, err
	case n == 0:
		return client, 0, ErrCut
	case first[0] == pires.SIGV2[0] && first[12] == byte(pires.PROXY) && first[13] == byte(pires.UNSPEC):
		return client, n, nil // the library rejects it; the protocol leaves that to the receiver
	}
	defer func() { // one client's header must not end the connections of all others
		if r := recover(); r != nil {
			client, n, err = netip.AddrPort{}, 0, fmt.Errorf("%w: panic: %v; header starts with %q", ErrPanic, r, first[:min(len(first), maxShown)])
		}
	}()
	header, err := parse(bufio.NewReaderSize(bytes.NewReader(first[:n]), n))
	switch {
	case err != nil:
		return client, 0, fmt.Errorf("%w: %w", ErrWrong, err)
	case header.Command.IsLocal():
		return client, n, nil
	}
	switch source := header.SourceAddr.(type) {
	case *net.UnixAddr:
		return client, n, nil
	case *net.TCPAddr:
		client = source.AddrPort()
		client = netip.AddrPortFrom(client.Addr().Unmap(), client.Port())
	}
	if a := client.Addr(); !a.IsGlobalUnicast() && !a.IsLoopback() && !a.IsLinkLocalUnicast() {
		return netip.AddrPort{}, 0, fmt.Errorf("%w: %s is not a valid address of a TCP client", ErrWrong, header.SourceAddr)
	}
	return client, n, nil
}

// maxShown limits the bytes of a header that an error shows.
const maxShown = 64

// For version 1, the prefix and the maximum length of a header. For version 2, the length of the fixed part, and the
// offset of the length field. Lengths are in bytes.
const (
	beginV1    = "PROXY "
	maxV1      = 107
	fixedV2    = 16
	lengthAtV2 = 14
)

// length returns the length of the header at the start of first. It is 0 if more bytes are needed to determine the
// length, or to complete the header.
func length(first []byte) (int, error) {
	switch {
	case begins(first, string(pires.SIGV2)):
		if len(first) < fixedV2 {
			return 0, nil
		}
		n := fixedV2 + int(binary.BigEndian.Uint16(first[lengthAtV2:]))
		if n > MaxHeader {
			return 0, ErrTooLong
		}
		if n > len(first) {
			return 0, nil
		}
		return n, nil
	case begins(first, beginV1):
		line := first[:min(len(first), maxV1)]
		if n := bytes.IndexByte(line, '\n') + 1; n > 0 {
			return n, nil
		}
		if len(line) == maxV1 {
			return 0, ErrTooLong
		}
		return 0, nil
	}
	return 0, ErrMissing
}

// begins reports whether b begins with the given prefix, as far as b reaches.
func begins(b []byte, with string) bool {
	n := min(len(b), len(with))
	return string(b[:n]) == with[:n]
}
