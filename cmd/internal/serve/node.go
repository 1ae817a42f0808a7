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
		return "", fmt.Errorf("get hostname: %w; set --node-name", err)
	}
	return strings.ToLower(strings.TrimSpace(name)), nil
}
