// Package frontend has the code for the clients of a service port that all protocols share:
//
//	Node        the common part of all front ends of this node
//	FrontEnd    one service port in one IP family: its View, affinity and counters
//	View        a front end's configuration and endpoints at one moment
//	Conn        a client's connection: destination, admission, endpoint
//	Connecting  a Conn that is looking for an endpoint: it takes steps from package search, and a Runner performs them
//	Listener    accepts clients
//	Place       a Listener's address, and the VIPs that it serves (targets)
//
// Packages stream and datagram accept clients for a FrontEnd. Package proxy creates front ends, swaps their views and
// closes their listeners.
package frontend
