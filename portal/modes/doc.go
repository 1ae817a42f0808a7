// Package modes has the list of all portal modes, in the order in which they are tried. It makes portals by their
// mode's name. It lists and removes the rules that portals of any mode, of this or another process, have left.
//
// A new mode is a sibling folder and a line in the list. A mode gets the others by its options (portal.Options), and
// imports none of them.
package modes
