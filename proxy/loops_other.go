//go:build !linux

package proxy

// loops are for Linux only.
type loops struct{}

func (loops) stop() {}
