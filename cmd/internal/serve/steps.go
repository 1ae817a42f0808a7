package serve

import (
	"context"
	"fmt"
	"io"

	"github.com/usherproxy/usher/cmd/internal/show"
	"github.com/usherproxy/usher/proxy/trace"
)

// PrintTrace returns a function that prints steps as they arrive until ctx ends.
func PrintTrace(out io.Writer) func(ctx context.Context, steps *trace.Reader) {
	return func(ctx context.Context, steps *trace.Reader) {
		buf := make([]trace.Event, 64)
		for {
			n, missed, err := steps.Next(ctx, buf)
			if err != nil {
				return
			}
			if missed > 0 {
				fmt.Fprintf(out, "… %s missed\n", show.Plural(int(missed), "event"))
			}
			for _, e := range buf[:n] {
				if _, err := fmt.Fprintf(out, "%s %s\n", e.Time.Format("15:04:05.000"), e); err != nil {
					return // the reader of the output has closed it
				}
			}
		}
	}
}
