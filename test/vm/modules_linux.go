package vm

import (
	"fmt"
	"os/exec"
)

// moduleRoot is where modprobe finds lib/modules, once the kernel is ready.
const moduleRoot = "/run/uml"

// loadModule loads a module and those that it needs.
func loadModule(name string) error {
	out, err := exec.Command("modprobe", "-d", moduleRoot, name).CombinedOutput()
	if err != nil {
		return fmt.Errorf("modprobe %s: %w: %s", name, err, out)
	}
	return nil
}
