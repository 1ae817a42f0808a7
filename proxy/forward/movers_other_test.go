//go:build !linux

package forward_test

func systemMovers() []mover { return nil }
