// Package show writes what usher's API tells for people at a terminal: tables,
// lines, waterfalls, explanations. Its functions are pure: values of package api
// in, lines out.
//
// Some lines have colours, as escape sequences of the sixteen colours that every
// terminal has and its user has chosen; they always say the same in words. Whoever
// writes them takes the colours out where they do not belong. Text that comes from
// a cluster is never written as it is: see Clean.
package show
