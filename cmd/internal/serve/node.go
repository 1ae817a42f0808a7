package serve

import (
	"fmt"
	"os"
	"strings"
)

// Hostname returns this machine's name as kubelet and kube-proxy use it for the
// Node object.
func Hostname() (string, error) {
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("--node-name is not given, and this machine's name cannot be found out: %w", err)
	}
	return strings.ToLower(strings.TrimSpace(name)), nil
}
