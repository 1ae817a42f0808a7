//go:build !linux

package stream

// loops are for Linux only.
type loops struct{}

func (loops) giveUp()      {}
func (loops) stop(*Server) {}
