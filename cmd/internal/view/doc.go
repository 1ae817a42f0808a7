// Package view implements the commands that query usher instances and print the results: get, trace, explain and
// diagnose. cmd/usher has them for the instance of its node. cmd/kubectl-usher has them for the instances of a cluster,
// which its [Viewers.Fleet] finds.
//
// [Asks] are the flags that select the instances, also for other commands.
package view
