// Package accesslog writes a line for each ended connection: its parties, the endpoints tried, its duration,
// and how it ended.
//
// It reads the trace, so the data path does nothing for it and never waits for it. If connections end faster
// than lines can be written, some lines are lost; their number is counted and written to the log itself.
package accesslog
