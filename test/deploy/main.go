// Command deploy renders everything in deploy/ into a folder, ready to apply, and prints the files.
package main

import (
	"fmt"
	"os"

	"github.com/usherproxy/usher/test/deploy/render"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: go run . DEPLOY-FOLDER OUTPUT-FOLDER")
		os.Exit(2)
	}
	files, err := render.Write(os.Args[1], os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, file := range files {
		fmt.Println(file)
	}
}
