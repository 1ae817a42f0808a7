// Package top implements kubectl usher top: a live full-screen view of usher's activity.
//
//	top.go          the program: it queries, shows and exits
//	model.go        data and selection; Update handles messages
//	keys.go         the action of each key
//	poll.go         querying usher
//	rates.go        rates from the counts of two answers
//	list.go         a list with a selected line
//	services.go, connections.go    the screens with lists
//	view.go         the complete display, and the screen of one connection
//
// It is built on bubbletea: a model, a function that handles messages, and one that draws. Neither function uses the
// terminal, so tests can press keys and read screens without one.
package top
