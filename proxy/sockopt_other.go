//go:build !linux

package proxy

// openFilesLimit returns a number that common systems allow.
func openFilesLimit() int64 { return 10240 }

// setMark is never called: no portal looks at marks.
func setMark(uintptr, uint32) error { return nil }
