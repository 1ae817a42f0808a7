// Command events makes the events whose calls test/walk counts:
//
//	events data DIR     in the data plane, with recorded calls: DIR/tcp-1.json and so on
//	events api DIR      in a daemon that uses an API server: coverage counters in DIR/idle, DIR/endpoint, DIR/service
//	events file DIR     the same with a folder of manifests
//
// The last two need a network namespace in which nftables rules can be installed.
package main

import (
	"log"
	"os"
	"path/filepath"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: events data|api|file DIR")
	}
	dir := os.Args[2]
	switch os.Args[1] {
	case "data":
		makeDataEvents(dir)
	case "api":
		makeControlEvents(dir, newAPI())
	case "file":
		makeControlEvents(dir, newFolder())
	default:
		log.Fatalf("invalid source %q: must be one of data, api, file", os.Args[1])
	}
	os.Exit(0) // the daemon would wait for connections to finish
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func tempDir() string {
	dir, err := os.MkdirTemp("", "walk-events-")
	must(err)
	return dir
}

// writeFile writes a file atomically: it is complete when it appears.
func writeFile(path, text string) {
	temporary := filepath.Join(filepath.Dir(path), ".new")
	must(os.WriteFile(temporary, []byte(text), 0o600))
	must(os.Rename(temporary, path))
}
