// Package frontend holds the part of a service port that clients connect to, for all protocols:
//
//	Node        the common part of all front ends of this node
//	FrontEnd    one service port in one IP family: its View, affinity and counters
//	View        a front end's configuration and endpoints at one moment
//	Conn        a client's connection: destination, admission, endpoint
//	Connecting  a Conn while it is not connected: it takes steps from package search, and a Runner performs them
//	Listener    accepts clients
//	Place       the address and the targets of a Listener
//
// Packages stream and datagram accept clients for a FrontEnd. Package proxy creates front ends, swaps their views and
// closes their listeners.
package frontend
