// Package diagnose detects common problems: it queries the running usher instance, checks the node
// itself, and returns each problem with its evidence and a remedy.
//
// It queries usher's state once (subject.go). Then each check examines that state, or the node,
// independently (checks.go, node.go). Each takes at most a few seconds, and all run concurrently. A new
// check is a function and a line in the table. result.go formats the results for users, and bundle.go collects
// data for a maintainer, without secrets.
package diagnose
