package vm

import (
	"fmt"
	"os/exec"
)

// loadModule loads a module and its dependencies.
func loadModule(name string) error {
	out, err := exec.Command("modprobe", name).CombinedOutput()
	if err != nil {
		return fmt.Errorf("modprobe %s: %w: %s", name, err, out)
	}
	return nil
}
