// Command build builds the programs of the control plane that the tests need,
// unless they are there already. The tests do so too; this is for those who want
// it done before.
package main

import (
	"fmt"
	"os"

	"github.com/usherproxy/usher/test/cluster/control"
)

func main() {
	b, err := control.Build(os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("%s\n%s\n%s\n", b.Etcd, b.APIServer, b.ControllerManager)
}
