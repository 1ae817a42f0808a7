//go:build !linux

package forward

import "syscall"

// socketHungUp is hungUp for a socket. It detects nothing, since these systems have no common way to do so.
func socketHungUp(syscall.RawConn) (ended bool, err error) { return false, nil }

// socketGone is gone for a socket. It detects nothing, like socketHungUp.
func socketGone(syscall.RawConn) bool { return false }

// WaitLeft returns false: it works on Linux only.
func WaitLeft(syscall.RawConn, bool) bool { return false }

// WaitReset returns false: it works on Linux only.
func WaitReset(syscall.RawConn) bool { return false }

// Pollers are used on Linux only.
type Pollers struct{}

// socketInline works on Linux only: elsewhere an urgent byte is lost.
func socketInline(syscall.RawConn) {}

// readerOf returns a reader for c.
func readerOf(c Conn) reader { return &plainReader{from: c} }

func socketUnsent(syscall.RawConn) int { return 0 }
func socketUnread(syscall.RawConn) int { return 0 }
