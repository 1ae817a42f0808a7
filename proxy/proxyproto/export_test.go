package proxyproto

import (
	"bufio"

	pires "github.com/pires/go-proxyproto"
)

// SetParser replaces the library's parser, and returns a function that restores it.
func SetParser(p func(*bufio.Reader) (*pires.Header, error)) (restore func()) {
	before := parse
	parse = p
	return func() { parse = before }
}
