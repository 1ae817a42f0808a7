package main

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

func TestWhatDoesNotCompileForASystemIsFound(t *testing.T) {
	g := NewWithT(t)
	top := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":              "module example.com/one\n\ngo 1.26\n",
		"one.go":              "package one\n\nimport \"os\"\n\nvar Name = os.Args[0]\n",
		"two_windows_test.go": "package one\n\nimport \"testing\"\n\nfunc TestName(*testing.T) { _ = Nmae }\n",
	} {
		g.Expect(os.WriteFile(filepath.Join(top, name), []byte(text), 0o644)).To(Succeed())
	}
	g.Expect(check(top, "GOOS=darwin", "GOARCH=arm64")).To(BeEmpty())
	g.Expect(check(top, "GOOS=windows", "GOARCH=amd64")).To(ConsistOf(ContainSubstring("undefined: Nmae")))
}
