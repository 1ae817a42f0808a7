//go:build !linux

package budget

// openFilesLimit returns a number that common systems allow.
func openFilesLimit() int64 { return 10240 }
