// Package diagnose detects common problems: it queries the running usher instance, checks the node itself, and returns
// each problem with its evidence and a remedy.
//
// It first queries usher's status and Services (subject.go). The checks examine these, query more data, or examine the
// node (checks.go, node.go, order.go, past.go). All checks run concurrently, within 6 s, or 20 s if usher is on another
// machine. A new check is a function and a line in the table. result.go formats the results for users, and bundle.go
// collects data for a maintainer, without secrets.
package diagnose
