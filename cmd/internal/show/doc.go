// Package show formats the data of usher's API for a terminal: tables, lines, waterfalls, explanations. Its functions
// take values of package api and return text; only Table writes.
//
// Some lines have colors, as escape sequences of the sixteen colors that every terminal supports and users can
// configure. No information is in the color alone. Callers must remove the colors from output that is not for a
// terminal. Text from a cluster is never shown unfiltered: see Clean.
package show
