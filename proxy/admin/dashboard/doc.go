// Package dashboard is the page of the admin server for users: it shows live what usher does with
// connections.
//
// The page is in the folder page: HTML, CSS and JavaScript modules as they are written, embedded in the
// binary. There is no build step, and the page loads nothing from elsewhere. It reads the admin API like any
// other client. Start reading at main.js.
//
// Text from the cluster (names, Pods, errors) is data and never markup: the page creates elements and text
// nodes, and its policy makes the browser refuse anything else (see handler.go).
package dashboard
