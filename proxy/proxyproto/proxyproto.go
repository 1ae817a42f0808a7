// Package proxyproto reads and writes headers of the PROXY protocol, by which proxies tell
// each other who the client of a connection is
// (https://www.haproxy.org/download/2.6/doc/proxy-protocol.txt).
//
// It works on bytes, and knows no sockets: who reads from one collects what comes until
// [Complete] says that this is enough, and then has [Read] look at it. Whose header is
// believed is decided elsewhere: see config.Balancers.
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

// MaxHeader is the longest header that is read, in bytes. An address takes 52 at the most
// in version 2; the rest is for what others add to it: names, identities, certificates.
const MaxHeader = 4 << 10

// Why a header is not believed.
var (
	ErrMissing = errors.New("missing PROXY protocol header")
	ErrCut     = errors.New("PROXY protocol header is truncated")
	ErrTooLong = errors.New("PROXY protocol header is too long")
	ErrWrong   = errors.New("invalid PROXY protocol header")
	// ErrPanic says that the library which parses headers has a fault.
	ErrPanic = errors.New("cannot parse PROXY protocol header")
)

// parse is the library's parser.
var parse = pires.Read

// Header returns the header that tells of a connection, or of a datagram, from from to to.
// If the version is 0, it is nil.
func Header(version config.ProxyProtocol, protocol config.Protocol, from, to netip.AddrPort) []byte {
	if version == 0 {
		return nil
	}
	var source, destination net.Addr = net.TCPAddrFromAddrPort(from), net.TCPAddrFromAddrPort(to)
	if protocol == config.UDP {
		source, destination = net.UDPAddrFromAddrPort(from), net.UDPAddrFromAddrPort(to)
	}
	header, _ := pires.HeaderProxyFromAddrs(byte(version), source, destination).Format() // these are addresses
	return header
}

// Complete reports whether Read needs no more of a connection than first, with which it
// begins: that holds the whole header, or will never be one.
func Complete(first []byte) bool {
	n, err := length(first)
	return n > 0 || err != nil
}

// Read returns the client that is named by the header with which first begins, and the
// header's length. The client is not valid if none is named: the sender speaks for itself,
// or for somebody who has no Internet address. The error is one of those above, perhaps
// with more words.
func Read(first []byte) (client netip.AddrPort, n int, err error) {
	switch n, err = length(first); {
	case err != nil:
		return client, 0, err
	case n == 0:
		return client, 0, ErrCut
	case first[0] == pires.SIGV2[0] && first[12] == byte(pires.PROXY) && first[13] == byte(pires.UNSPEC):
		return client, n, nil // the library rejects it, which the protocol leaves to the receiver
	}
	defer func() { // a header of one client must not end the connections of all others
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

// maxShown is how much of a header is shown, in bytes.
const maxShown = 64

// What the headers begin with, and how long those of version 1 may be.
const (
	beginV1    = "PROXY "
	maxV1      = 107
	fixedV2    = 16
	lengthAtV2 = 14
)

// length returns how long the header is with which first begins: 0 if more is needed to
// tell, or to have all of it.
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

// begins reports whether b begins with what is given, as far as there is any of it.
func begins(b []byte, with string) bool {
	n := min(len(b), len(with))
	return string(b[:n]) == with[:n]
}
