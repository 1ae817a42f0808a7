// Package frontend holds what clients of a service port meet, whatever the protocol:
//
//	Node      what all front ends of this node have in common
//	FrontEnd  one service port in one IP family: its View, affinity and counters
//	View      its configuration and endpoints at one moment
//	Client    who has come: where to, whether it may, and what becomes of it
//	Listener  what takes clients in, and Place, where that is
//
// Packages stream and datagram are given a FrontEnd and take in its clients. Package
// proxy makes front ends, swaps their views and closes their listeners.
package frontend
