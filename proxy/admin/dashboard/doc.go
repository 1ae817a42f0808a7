// Package dashboard is the page that the admin server shows to people: what
// usher does to connections, live.
//
// The page is in the folder page: HTML, CSS and JavaScript modules as they are
// written, embedded in the binary. Nothing is built, and nothing is loaded from
// anywhere else. It reads the admin API as every other client does. main.js is
// where a reader begins.
//
// What comes from the cluster (names, Pods, errors) is data and never markup: the
// page makes elements and text nodes, and the browser is told to refuse anything
// else (see handler.go).
package dashboard
