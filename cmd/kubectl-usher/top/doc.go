// Package top is kubectl usher top: what goes on, full screen and live.
//
//	top.go          the program: asks, shows, ends
//	model.go        what is known and chosen; Update takes what happens
//	keys.go         what each key does
//	poll.go         asking the usher
//	rates.go        counts of two answers become rates
//	list.go         a list with one line chosen
//	services.go, connections.go, waterfall.go    the three screens
//	view.go         the whole picture
//
// It is built on bubbletea: a model, a function that takes what happens, one that
// draws. Both are pure, so tests press keys and read screens without a terminal.
package top
