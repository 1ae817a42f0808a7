package daemon

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/forward"
)

// checkKernel returns an error if this kernel cannot serve any connection. Without IPv6,
// usher serves the other Services.
func (d *Daemon) checkKernel() error {
	for _, family := range portal.Families {
		err := forward.CheckKernel(family.Any())
		switch {
		case err == nil:
		case family.Is6():
			d.log.WithError(err).Warn("Cannot serve IPv6 Services: the kernel lacks a required feature; see docs/requirements.md")
		default:
			return fmt.Errorf("%s lacks a required feature: %w; see docs/requirements.md", kernelName(), err)
		}
	}
	return nil
}

func kernelName() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "this kernel"
	}
	return fmt.Sprintf("this kernel (%s %s)", unix.ByteSliceToString(u.Sysname[:]), unix.ByteSliceToString(u.Release[:]))
}
