// Package house holds what must be true of the repository itself and not of what
// usher does: which package may import which (imports_test.go), what the program may
// link (program_test.go), that a link in a document leads somewhere, that documents
// are found (links_test.go), and that words to avoid become fewer (words_test.go).
//
// But for the size of usher it reads files and builds nothing, so it sees the code of every operating system
// and of the modules below test, and takes a moment.
package house
