// Package fleet asks the usher instances of several nodes, and puts together what they tell.
//
// [Ask] asks many at once, each with a time limit of its own (ask.go). merge.go puts together what they tell of the
// same Service or endpoint, rows.go makes rows of a table of it, and events.go follows what happens on all nodes. How
// they are found and reached is up to a [Finder]; commands that ask one instance need none.
package fleet
