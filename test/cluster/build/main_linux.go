// Command build builds the programs of Kubernetes that the tests need, unless they exist. The tests do so too; this
// command does it in advance.
package main

import (
	"fmt"
	"os"

	"github.com/usherproxy/usher/test/cluster/control"
)

func main() {
	if missing := control.Missing(); missing != "" {
		fmt.Println("note: no control plane is built:", missing)
		return
	}
	if _, err := control.Build(os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
