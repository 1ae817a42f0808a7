// Package ground runs the same checks, what a user does with usher, in each place in which usher may
// run. What works where is a table in docs/requirements.md: a check that fails and should not, or that works
// and should not, makes the suite fail until the page says so (make grounds).
package ground
