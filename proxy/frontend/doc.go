// Package frontend holds what clients of a service port meet, whatever the protocol:
//
//	Node        what all front ends of this node have in common
//	FrontEnd    one service port in one IP family: its View, affinity and counters
//	View        its configuration and endpoints at one moment
//	Conn        a client's connection: where to, whether it is admitted, and its endpoint
//	Connecting  the same while an endpoint is sought, and Runner, how it waits for one
//	Listener    what takes clients in, and Place, where that is
//
// Packages stream and datagram are given a FrontEnd and take in its clients. Package
// proxy makes front ends, swaps their views and closes their listeners.
package frontend
