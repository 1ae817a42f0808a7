// Command recording plays a session of the demo in a terminal, as root in a network namespace of
// its own, and writes what was seen: docs/demo.cast, in the format asciicast v2
// (https://docs.asciinema.org/manual/asciicast/v2/), and docs/demo.svg, which is made from it.
// `make recording` calls it.
//
// What is played stands in [session]. Each command has something that its output must hold; a
// session in which that does not come is not written. A marker in the cast says where a command
// begins, and which.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

func main() {
	usher := flag.String("usher", "bin/usher", "the program")
	to := flag.String("to", "docs", "the folder that gets demo.cast and demo.svg")
	pace := flag.Duration("pace", 55*time.Millisecond, "how long a key takes; a pause is some keys long")
	flag.Parse()
	if err := run(*usher, *to, *pace); err != nil {
		fmt.Fprintln(os.Stderr, "recording:", err)
		os.Exit(1)
	}
}

func run(usher, to string, pace time.Duration) error {
	usher, err := filepath.Abs(usher)
	if err != nil {
		return err
	}
	c, err := record(usher, pace)
	if err != nil {
		return err
	}
	text, err := c.marshal()
	if err != nil {
		return err
	}
	svg, err := c.svg()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(to, castFile), text, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(to, svgFile), svg, 0o644)
}

// castFile and svgFile are what the two files are called.
const castFile, svgFile = "demo.cast", "demo.svg"
