// Command build builds the programs of Kubernetes that the tests need, unless they exist. The tests do so too; this
// command does it in advance.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/usherproxy/usher/test/cluster/control"
)

func main() {
	if missing := control.Missing(); missing != "" {
		fmt.Println("note: no control plane is built:", missing)
		return
	}
	for _, build := range []func(io.Writer) error{
		func(log io.Writer) error { _, err := control.Build(log); return err },
		func(log io.Writer) error { _, err := control.KubeProxy(log); return err },
		func(log io.Writer) error { _, err := control.Kubectl(log); return err },
	} {
		if err := build(os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
