// Command all runs all test suites, even after failures, and ends with a table of
// results and one line of totals. It is `make test`. Arguments limit it to the
// suites with these names.
//
// It counts specs, and Go tests that do not contain specs. A suite
// that does not compile, or exits before its tests end, counts as one failure.
// Suites that mostly wait run concurrently; those that measure run alone.
package main
