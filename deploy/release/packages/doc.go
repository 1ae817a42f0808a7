// Command packages makes what a release of usher consists of, from programs that have been built:
// for each platform an archive and a bill of materials, for Linux a .deb and an .rpm beside them,
// checksums, krew's manifest, and the notes, which are a section of CHANGELOG.md. `make release`
// builds the programs and runs it.
//
// The same programs and sources give the same files, bit by bit: all times are that of the commit,
// which Go notes in the programs. It is an error if they are not all of one commit, or were
// built with changes that are not committed.
//
// Manual pages and completions are written by the program for the platform that this runs on.
package main
