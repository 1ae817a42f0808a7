// Package dashboard tests the dashboard as a person has it: a real usher, and its
// page in Chromium without a window.
//
// It is a module of its own, so that usher's does not get chromedp, which drives
// the browser. Nothing here needs root or reaches beyond loopback: usher runs
// with --portal=none.
package dashboard
