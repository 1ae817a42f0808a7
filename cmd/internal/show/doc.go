// Package show formats the data of usher's API for a terminal: tables,
// lines, waterfalls, explanations. Its functions are pure: they take values of package
// api and return lines.
//
// Some lines have colors, as escape sequences of the sixteen colors that every
// terminal supports and users can configure. Words always say the same. The writer of
// the lines must remove the colors where they do not belong. Text from
// a cluster is never written unfiltered: see Clean.
package show
