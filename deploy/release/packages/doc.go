// Command packages builds a release of usher from its compiled programs: for each platform an
// archive and a bill of materials, for Linux also a .deb and an .rpm. It adds checksums, krew's
// manifest, and the notes, which are a section of CHANGELOG.md. `make release`
// builds the programs and runs it.
//
// The same programs and sources give identical files: all times are that of the commit,
// which Go records in the programs. It is an error if they are not all of one commit, or were
// built with uncommitted changes.
//
// The programs for the platform of this machine write manual pages and completions.
package main
