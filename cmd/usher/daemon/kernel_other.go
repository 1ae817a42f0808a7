//go:build !linux

package daemon

// checkKernel: nothing is needed that other systems may lack.
func (d *Daemon) checkKernel() error { return nil }
