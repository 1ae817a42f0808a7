// Package view has the commands that ask usher instances what they do and print it: get, trace, explain and
// diagnose. cmd/usher has them for the instance of its node, and cmd/kubectl-usher for those of a cluster, which
// it finds by the [Viewers.Fleet] that it brings.
//
// [Asks] are the flags that say which instance is asked, for other commands that ask, too.
package view
