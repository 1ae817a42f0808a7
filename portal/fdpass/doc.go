// Package fdpass gives open files to another process, over a socket that both have:
// SCM_RIGHTS of unix(7). The other process gets descriptors of its own for the same
// open files.
package fdpass
