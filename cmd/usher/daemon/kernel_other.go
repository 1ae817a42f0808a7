//go:build !linux

package daemon

// checkKernel always succeeds: usher needs nothing that other systems may lack.
func (d *Daemon) checkKernel() error { return nil }
