package admin_test

import (
	"fmt"
	"os"

	. "github.com/onsi/ginkgo/v2"
)

// needFiles skips a spec if this process cannot open n files at once.
func needFiles(n int) {
	GinkgoHelper()
	for range n {
		f, err := os.Open(os.DevNull)
		if err != nil {
			Skip(fmt.Sprintf("needs %d open files at once: %v", n, err))
		}
		defer f.Close()
	}
}
