//go:build !linux

package kube

import "syscall"

// mark is net.Dialer.Control. There is no portal that redirects here.
func (c Connection) mark(string, string, syscall.RawConn) error { return nil }
