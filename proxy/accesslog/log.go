package accesslog

import (
	"bytes"
	"context"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/time/rate"

	"github.com/usherproxy/usher/proxy/trace"
)

const (
	// lookInterval is the interval for checking whether the log's file was moved away.
	lookInterval = time.Second
	// keepBuffer is the size up to which the line buffer is reused.
	keepBuffer = 256 << 10
)

var newline = []byte("\n")

// Log is an access log.
type Log struct {
	path   string // "" for out
	out    io.Writer
	file   *os.File // nil for out, and while the file is unavailable
	looked time.Time
	format Format
	errors logrus.FieldLogger
	rarely rate.Sometimes

	ends  *trace.Follower
	lines []byte
	count int64 // number of connections' lines in it: lines about lost ones do not count
	torn  bool  // the first line in it is the rest of a line whose beginning is already written

	written, lost atomic.Int64
	lastLost      atomic.Int64 // Unix time in ns
}

// Options are the destination and the format of lines.
type Options struct {
	// Path is the file to which lines are appended; "-" is Out. To rotate the file, move it away: lines go to a new
	// file a second later at the latest.
	Path   string
	Out    io.Writer
	Format Format
	// Log receives errors.
	Log logrus.FieldLogger
}

// New returns a log of the connections that end from now on.
func New(t *trace.Log, o Options) (*Log, error) {
	l := &Log{out: o.Out, format: o.Format, errors: o.Log, ends: t.Follow(), rarely: rate.Sometimes{First: 1, Interval: 10 * time.Second}}
	if o.Path == "-" {
		return l, nil
	}
	l.path = o.Path
	return l, l.open()
}

// Written returns the number of lines written.
func (l *Log) Written() int64 { return l.written.Load() }

// Lost returns the number of lines missing, because the trace no longer had the connection when its line was due, or
// because the file could not be written. In the first case it includes connections that are excluded from the log.
func (l *Log) Lost() int64 { return l.lost.Load() }

// LastLost returns when the last line was lost. It is meaningful only if Lost is above 0.
func (l *Log) LastLost() time.Time { return time.Unix(0, l.lastLost.Load()) }

func (l *Log) lose(lines int64) {
	l.lost.Add(lines)
	l.lastLost.Store(time.Now().UnixNano())
}

// Run writes lines until ctx ends, then the remaining ones, and closes the file.
func (l *Log) Run(ctx context.Context) {
	l.ends.Run(ctx, l.take, l.write)
	if l.file != nil {
		l.file.Close()
	}
}

// take formats the line of a connection's end.
func (l *Log) take(e *trace.Event, missed int64) {
	if missed > 0 {
		l.lose(missed)
		l.lines = l.format.lost(l.lines, e.Time, missed)
	}
	if e.Record.Port.Unlogged {
		return
	}
	l.lines = l.format.line(l.lines, e)
	l.count++
	if len(l.lines) > keepBuffer {
		l.write()
	}
}

// write writes the formatted lines.
func (l *Log) write() {
	if len(l.lines) == 0 {
		return
	}
	n, err := 0, error(nil)
	if l.path == "" {
		n, err = l.out.Write(l.lines)
	} else if err = l.follow(); err == nil {
		n, err = l.file.Write(l.lines)
	}
	rest, kept := l.lines[:0], int64(0)
	if err != nil {
		written := min(int64(bytes.Count(l.lines[:n], newline)), l.count)
		l.written.Add(written)
		l.count -= written
		// The next write completes a line of which only a part is written. The lines after it are lost.
		if l.torn = n > 0 && l.lines[n-1] != '\n' || n == 0 && l.torn; l.torn {
			rest = append(rest, l.lines[n:n+bytes.Index(l.lines[n:], newline)+1]...)
			kept = min(l.count, 1) // 0 if only a line about lost ones is left
		}
		l.lose(l.count - kept)
		l.rarely.Do(func() {
			l.errors.WithError(err).Error("Cannot write the access log; lines are lost (logged at most every 10 s)")
		})
	} else {
		l.written.Add(l.count)
		l.torn = false
	}
	l.lines, l.count = rest, kept
	if !l.torn && cap(l.lines) > 2*keepBuffer {
		l.lines = nil
	}
}

// follow reopens the file if it was moved away or deleted.
func (l *Log) follow() error {
	now := time.Now()
	if l.file != nil && now.Sub(l.looked) < lookInterval {
		return nil
	}
	l.looked = now
	if l.file != nil {
		opened, err := l.file.Stat()
		if err == nil {
			if there, err := os.Stat(l.path); err == nil && os.SameFile(opened, there) {
				return nil
			}
		}
		l.file.Close()
		l.file = nil
		if l.torn { // the line's beginning is in the old file
			l.lines = l.lines[bytes.Index(l.lines, newline)+1:]
			l.torn = false
			l.lose(min(l.count, 1))
			l.count = max(l.count-1, 0)
		}
	}
	return l.open()
}

func (l *Log) open() (err error) {
	l.file, err = os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o640)
	return err
}
