// Package client queries a running usher process through its admin API. Package api defines the data; this
// package retrieves it: whole lists from their pages, events from the stream, and errors with their remedy.
//
// It changes nothing, with one exception: on request it breaks the servers of usher demo (demo.go).
package client
