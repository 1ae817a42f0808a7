package krew

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

var checksum = regexp.MustCompile(`SHA256\(([^)]*)\)`)

// Manifest returns the manifest for a version, such as v1.2.3, with the archives in a folder. A missing archive
// is an error.
func Manifest(template []byte, version, archives string) ([]byte, error) {
	text := bytes.ReplaceAll(template, []byte("VERSION"), []byte(version))
	var missing error
	text = checksum.ReplaceAllFunc(text, func(match []byte) []byte {
		name := string(checksum.FindSubmatch(match)[1])
		content, err := os.ReadFile(filepath.Join(archives, name))
		if err != nil && missing == nil {
			missing = fmt.Errorf("krew's manifest names an archive that there is not: %w", err)
		}
		return fmt.Appendf(nil, "%x", sha256.Sum256(content))
	})
	return text, missing
}
