package manifest

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/config"
)

// BenchmarkServed measures the time from writing a file, in which the endpoint of one Service changes, until the
// source reports that Service.
func BenchmarkServed(b *testing.B) {
	for _, c := range []struct {
		name            string
		files, services int // in each file
		rename          bool
	}{
		{"one file of 10 Services, replaced", 1, 10, true},
		{"one file of 10 Services, written in place", 1, 10, false},
		{"one file of 5,000 Services, replaced", 1, 5000, true},
		{"5,000 files of one Service, one replaced", 5000, 1, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			dir := b.TempDir()
			write := func(file, change int) {
				text := many(c.services)
				text = strings.ReplaceAll(text, "web-", fmt.Sprintf("f%d-web-", file))
				text = strings.Replace(text, "10.1.0.1]", fmt.Sprintf("10.3.0.%d]", 1+change%2), 1)
				path := filepath.Join(dir, fmt.Sprintf("f%d.yaml", file))
				at := path
				if c.rename {
					at = filepath.Join(dir, ".new")
				}
				if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
					b.Fatal(err)
				}
				if c.rename {
					if err := os.Rename(at, path); err != nil {
						b.Fatal(err)
					}
				}
			}
			for i := range c.files {
				write(i, 0)
			}
			log := logrus.New()
			log.SetOutput(io.Discard)
			s, err := New(Options{Paths: []string{dir}, Log: log})
			if err != nil {
				b.Fatal(err)
			}
			ctx, stop := context.WithCancel(context.Background())
			applied, ended := make(chan []config.Service, 10), make(chan error)
			go func() { ended <- s.Run(ctx, func(all []config.Service) { applied <- all }) }()
			defer func() { stop(); <-ended }()
			<-applied
			for i := range b.N {
				b.StopTimer()
				time.Sleep(400 * time.Millisecond) // until the source is idle
				b.StartTimer()
				write(0, i+1)
				if all := <-applied; len(all) != 1 {
					b.Fatal(len(all))
				}
			}
		})
	}
}
