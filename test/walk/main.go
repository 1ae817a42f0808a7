package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"maps"
	"os"
	"runtime"
)

func main() {
	to := flag.String("page", "", "file to write the page of calls to")
	runs := flag.Int("runs", 1, "times to measure")
	flag.Parse()
	if err := run(*to, *runs); err != nil {
		log.Fatal(err)
	}
}

func run(to string, runs int) error {
	dir, err := os.MkdirTemp("", "walk-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	m, err := build(".", dir)
	if err != nil {
		return err
	}
	for range runs {
		measured, recordings, err := m.measure()
		if err != nil {
			return err
		}
		printFigures(os.Stdout, measured)
		fmt.Println()
		if to != "" {
			if err := os.WriteFile(to, []byte(page(recordings)), 0o644); err != nil {
				return err
			}
		}
	}
	if err := mayControl(); err != nil {
		fmt.Printf("The control side was not measured: %s.\n\n", err)
	}
	return printLines(os.Stdout, ".")
}

// mayControl returns the reason why the control side cannot be measured here, or nil.
func mayControl() error {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		return errors.New("needs root on Linux, for a network namespace with rules of nftables")
	}
	return nil
}

// measure makes all events. It returns their figures, and the recordings of those in the data plane.
func (m *meter) measure() (map[string]figures, map[string]recording, error) {
	measured := map[string]figures{}
	recordings, err := m.dataEvents()
	if err != nil {
		return nil, nil, err
	}
	for event, r := range recordings {
		measured[event] = r.figures
	}
	if mayControl() == nil {
		for _, source := range []string{"api", "file"} {
			found, err := m.controlEvents(source)
			if err != nil {
				return nil, nil, err
			}
			maps.Copy(measured, found)
		}
	}
	return measured, recordings, nil
}
