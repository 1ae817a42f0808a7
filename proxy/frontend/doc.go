// Package frontend holds the part of a service port that clients connect to, for all protocols:
//
//	Node        the common part of all front ends of this node
//	FrontEnd    one service port in one IP family: its View, affinity and counters
//	View        its configuration and endpoints at one moment
//	Conn        a client's connection: destination, admission, endpoint
//	Connecting  a Conn while an endpoint is sought; a Runner waits for it
//	Listener    accepts clients, at a Place
//
// Packages stream and datagram accept clients for a FrontEnd. Package proxy creates front ends, swaps their views and
// closes their listeners.
package frontend
