package kernel

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// InUse returns those of addrs that are a local address of a connection in this network namespace. Connections are SCTP
// associations and TCP connections, even those without a process that still have data to send. Listeners and finished
// TCP connections (TIME-WAIT) do not count.
//
// It reads /proc, which every kernel has. Old and minimal kernels may lack the modules of sock_diag.
func InUse(addrs []netip.Addr) (map[netip.Addr]bool, error) {
	asked, found := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, a := range addrs {
		asked[a] = true
	}
	note := func(local netip.Addr) {
		if asked[local] {
			found[local] = true
		}
	}
	var errs []error
	for _, list := range []struct {
		name string
		read func(io.Reader, func(netip.Addr)) error
	}{{"tcp", readTCP}, {"tcp6", readTCP}, {"sctp/assocs", readAssociations}} {
		// /proc/net would be the main thread's, which may be in another network namespace.
		f, err := os.Open("/proc/thread-self/net/" + list.name)
		if err == nil {
			err = list.read(f, note)
			f.Close()
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) { // an unused protocol has no file
			errs = append(errs, fmt.Errorf("listing open connections: %w", err))
		}
	}
	return found, errors.Join(errs...)
}

// readTCP reads /proc/net/tcp or tcp6, and calls note with the local address of each connection.
func readTCP(r io.Reader, note func(netip.Addr)) error {
	const timeWait, closed, listening = "06", "07", "0A" // of enum in net/tcp_states.h
	return eachLine(r, func(line string) {
		words := strings.Fields(line) // number, local address:port, remote address:port, state
		if len(words) < 4 || slices.Contains([]string{timeWait, closed, listening}, words[3]) {
			return
		}
		if local, err := ParseProcNet(words[1]); err == nil {
			note(local.Addr())
		}
	})
}

// readAssociations reads /proc/net/sctp/assocs, and calls note with each local address of each association.
func readAssociations(r io.Reader, note func(netip.Addr)) error {
	return eachLine(r, func(line string) {
		// Local addresses precede the arrow, those of the peer follow it.
		local, _, ok := strings.Cut(line, "<->")
		if !ok {
			return
		}
		for _, word := range slices.Backward(strings.Fields(local)) {
			// The address in use has a star.
			addr, err := netip.ParseAddr(strings.TrimPrefix(word, "*"))
			if err != nil {
				return // a port, which precedes the addresses
			}
			note(addr.Unmap())
		}
	})
}

func eachLine(r io.Reader, f func(string)) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20) // an association may have many addresses
	for lines.Scan() {
		f(lines.Text())
	}
	return lines.Err()
}
