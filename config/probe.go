package config

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Probe configures the periodic probes of a service port's endpoints. Its zero value means no probes.
type Probe struct {
	Check Check
	// Interval is the time between the end of a probe and the next one, Timeout the maximum duration of one.
	Interval, Timeout time.Duration
	// Fall is the number of consecutive failures after which an endpoint is skipped, and Rise the number of successes
	// after which it is used again.
	Rise, Fall int
}

// Wanted reports whether endpoints of a protocol are probed: a protocol other than TCP needs a separate port for
// probes.
func (p Probe) Wanted(protocol Protocol) bool {
	return p.Check.Kind != NoCheck && (protocol == TCP || p.Check.Port != 0)
}

// Check is the action of a probe. Its zero value means no probes.
type Check struct {
	Kind CheckKind
	Port uint16 // 0 is the endpoint's own port
	Path string // for HTTP and HTTPS; includes the query, if there is one
}

// CheckKind is a protocol of probes.
type CheckKind uint8

// The kinds.
const (
	NoCheck    CheckKind = iota // no probes
	CheckTCP                    // succeeds if a connection can be made
	CheckHTTP                   // GET succeeds with a status from 200 to 399
	CheckHTTPS                  // the same over TLS; the certificate is not verified
)

var checkKinds = [...]string{"none", "tcp", "http", "https"}

// String returns the kind's name.
func (k CheckKind) String() string { return checkKinds[k] }

// CheckForms describes the syntax of a Check.
const CheckForms = "none, tcp[:PORT], http:/PATH[:PORT] or https:/PATH[:PORT]"

var errCheck = errors.New("must be " + CheckForms)

// maxCheck is the maximum length of a Check in bytes.
const maxCheck = 1024

// String returns the check in the form that UnmarshalText accepts.
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

// UnmarshalText parses text. Digits after the last colon are the port, as in http:/healthz:8081.
func (c *Check) UnmarshalText(text []byte) error {
	name, rest, more := strings.Cut(string(text), ":")
	kind := slices.Index(checkKinds[:], name)
	found := Check{Kind: CheckKind(max(0, kind)), Path: rest}
	if i := strings.LastIndexByte(rest, ':'); i >= 0 || found.Kind == CheckTCP && more {
		port, err := strconv.ParseUint(rest[i+1:], 10, 16)
		switch {
		case err == nil && port > 0:
			found.Path, found.Port = rest[:max(i, 0)], uint16(port)
		case strings.Trim(rest[i+1:], "0123456789") == "":
			kind = -1 // digits that are no port
		}
	}
	ok := kind >= 0 && len(text) <= maxCheck
	switch found.Kind {
	case NoCheck:
		ok = ok && !more
	case CheckTCP:
		ok = ok && found.Path == "" && more == (found.Port != 0)
	case CheckHTTP, CheckHTTPS:
		ok = ok && ValidCheckPath(found.Path)
	}
	if !ok {
		return errCheck
	}
	*c = found
	return nil
}

// ValidCheckPath reports whether a path is valid in a Check.
func ValidCheckPath(path string) bool {
	if !strings.HasPrefix(path, "/") || len(path) > maxCheck || strings.ContainsFunc(path, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '#' }) {
		return false
	}
	_, err := url.ParseRequestURI(path)
	return err == nil
}
