// Package fleet queries the usher instances of several nodes, and merges their answers.
//
// [Ask] queries many at once, each with its own time limit (ask.go). merge.go merges their answers about the same
// Service or endpoint, rows.go formats the result as rows of a table, and events.go follows the events of all nodes.
// A [Finder] finds and connects to the instances; commands that query one instance need none.
package fleet
