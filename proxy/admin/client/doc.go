// Package client asks a running usher what it does, through its admin API. What
// is asked for is in package api; this package knows how to get it: whole lists
// from their pages, events from the stream, and errors that say what to do.
//
// It changes nothing, with one exception: the servers of usher demo, which can be
// broken on request (demo.go).
package client
