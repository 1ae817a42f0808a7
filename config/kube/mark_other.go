//go:build !linux

package kube

import "syscall"

// mark implements net.Dialer.Control. No portal redirects on other systems.
func (c Connection) mark(string, string, syscall.RawConn) error { return nil }
