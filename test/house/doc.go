// Package house contains tests of the repository itself, not of usher's behavior: permitted imports (imports_test.go),
// linked packages and size (program_test.go), links in documents and whether documents are linked (links_test.go), and
// the number of words to avoid (words_test.go).
//
// Except for usher's size the tests only read files and build nothing. So they cover the code of every operating system
// and the modules below test, and take only a moment.
package house
