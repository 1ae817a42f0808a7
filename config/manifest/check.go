package manifest

import (
	"fmt"
	"time"

	"github.com/usherproxy/usher/config"
)

// Result is what Check found.
type Result struct {
	Files    int              // how many were read
	Services []config.Service // what would be served, sorted by name

	// Errors are parts that would not be served; Warnings are parts that would
	// perhaps not do what was meant. Both are sorted by place.
	Errors, Warnings []Problem
}

// Check reads the files and folders of opts once, and says what would be served
// and all that is wrong. It returns an error only if the options are wrong.
func Check(opts Options) (*Result, error) {
	l, err := opts.loader()
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	out := l.load(time.Now())
	return &Result{
		Files:    len(l.files),
		Services: changes(nil, out.services),
		Errors:   out.errors,
		Warnings: out.warnings,
	}, nil
}
