// Command all runs all suites of tests, whatever fails, and ends with a table of
// what came of each and one line that counts them all. It is `make test`.
//
// What is counted is specs, and Go tests that are not the frame of specs. A suite
// that does not compile, or ends before its tests do, counts as one that failed.
// Suites that mostly wait run beside each other; those that measure run alone.
package main
