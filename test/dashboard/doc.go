// Package dashboard tests the dashboard as a user sees it: a real usher process, and its
// page in headless Chromium.
//
// It is a separate module, so that usher's module does not depend on chromedp, which
// drives the browser. Nothing here needs root or a network other than loopback: usher
// runs with --portal=none.
package dashboard
