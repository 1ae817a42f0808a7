package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Probe is how a proxy finds out whether the endpoints of a service port are well, all the time.
// What is zero was not said: the proxy's own default.
type Probe struct {
	Check Check
	// Interval is from the end of a probe to the beginning of the next, Timeout how long one may
	// take.
	Interval, Timeout time.Duration
	// Fall is how many have to fail in a row for an endpoint to be passed over, and Rise how many
	// have to succeed for it to be back.
	Rise, Fall int
}

// Or returns p, and of other what p does not say.
func (p Probe) Or(other Probe) Probe {
	if p.Check == (Check{}) {
		p.Check = other.Check
	}
	p.Interval, p.Timeout = cmp.Or(p.Interval, other.Interval), cmp.Or(p.Timeout, other.Timeout)
	p.Rise, p.Fall = cmp.Or(p.Rise, other.Rise), cmp.Or(p.Fall, other.Fall)
	return p
}

// Wanted reports whether there are probes of endpoints of a protocol: one that is not TCP has no
// port of its own for them.
func (p Probe) Wanted(protocol Protocol) bool {
	return p.Check.Kind > NoCheck && (protocol == TCP || p.Check.Port != 0)
}

// Check is what a probe does. Its zero value is that nothing was said.
type Check struct {
	Kind CheckKind
	Port uint16 // 0 is the endpoint's own
	Path string // of HTTP and HTTPS; with the query, if there is one
}

// CheckKind is a protocol of probes.
type CheckKind uint8

// The kinds.
const (
	NoCheck    CheckKind = iota + 1 // there are no probes
	CheckTCP                        // a connection succeeds that can be made
	CheckHTTP                       // GET succeeds with a status from 200 to 399
	CheckHTTPS                      // the same by TLS; who has signed the certificate does not matter
)

var checkKinds = [...]string{"", "none", "tcp", "http", "https"}

// String returns the kind's name; "" if nothing was said.
func (k CheckKind) String() string { return checkKinds[k] }

// CheckForms says in words how a Check is written.
const CheckForms = "none, tcp, tcp:PORT, http:/PATH, http:/PATH:PORT, or https as http"

var errCheck = errors.New("it must be " + CheckForms)

// maxCheck is how long a Check may be, in bytes.
const maxCheck = 1024

// String returns the check as UnmarshalText takes it.
func (c Check) String() string {
	text := c.Kind.String()
	if c.Path != "" {
		text += ":" + c.Path
	}
	if c.Port != 0 {
		text += fmt.Sprintf(":%d", c.Port)
	}
	return text
}

// MarshalText returns c.String.
func (c Check) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText makes c what text says. Digits behind the last colon are the port, as in
// http:/healthz:8081.
func (c *Check) UnmarshalText(text []byte) error {
	name, rest, more := strings.Cut(string(text), ":")
	kind := CheckKind(max(0, slices.Index(checkKinds[:], name)))
	found := Check{Kind: kind, Path: rest}
	if i := strings.LastIndexByte(rest, ':'); i >= 0 || kind == CheckTCP && more {
		port, err := strconv.ParseUint(rest[i+1:], 10, 16)
		switch {
		case err == nil && port > 0:
			found.Path, found.Port = rest[:max(i, 0)], uint16(port)
		case strings.Trim(rest[i+1:], "0123456789") == "":
			more, kind = true, NoCheck // it is meant to be one
		}
	}
	ok := len(text) <= maxCheck
	switch kind {
	case NoCheck:
		ok = ok && !more
	case CheckTCP:
		ok = ok && found.Path == "" && more == (found.Port != 0)
	case CheckHTTP, CheckHTTPS:
		ok = ok && ValidCheckPath(found.Path)
	default:
		ok = false
	}
	if !ok {
		return errCheck
	}
	*c = found
	return nil
}

// ValidCheckPath reports whether a path can be one of a Check.
func ValidCheckPath(path string) bool {
	if !strings.HasPrefix(path, "/") || len(path) > maxCheck || strings.ContainsFunc(path, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '#' }) {
		return false
	}
	_, err := url.ParseRequestURI(path)
	return err == nil
}
