// Package fdpass passes open files to another process over a socket between the two: SCM_RIGHTS of unix(7). The other
// process gets its own descriptors for the same open files.
package fdpass
