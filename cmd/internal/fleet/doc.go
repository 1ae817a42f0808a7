// Package fleet queries the usher instances of several nodes, and merges their answers.
//
// A [Finder] finds the instances and connects to them; commands that query one instance need none. [Ask] queries many
// instances at once (ask.go). merge.go merges their answers about the same Service or endpoint, and rows.go formats the
// result as rows of a table. events.go follows the events of all nodes.
package fleet
