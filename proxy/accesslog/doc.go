// Package accesslog writes a line for each connection that has ended: who it was,
// which endpoints were tried, how long it took, and how it ended.
//
// It reads the trace, so the data path does nothing for it and never waits for it.
// If lines cannot be written as fast as connections end, some are lost, which is
// counted and said in the log itself.
package accesslog
