// Package modes has the list of all modes of portal, in the order in which they are tried,
// and what goes through that list: making a portal by its mode's name, and listing and
// taking out what portals of any mode, of this or another process, have left.
//
// A new mode is a folder beside this one and a line in the list. A mode is told of the
// others by its options (portal.Options), and imports none of them.
package modes
