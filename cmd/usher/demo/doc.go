// Package demo is what 'usher demo' serves and shows: a Service of each kind, with
// servers in this process that can be broken and mended.
//
// [Start] starts the servers on loopback ports and writes the manifests that make
// them the endpoints of Services, for a proxy that the caller runs. Handler adds to
// the proxy's API the routes by which 'usher demo break' and 'mend' give the servers
// faults; [AskAll] and [KeepAsking] are the clients. What people read is printed here
// too: the demo is to be looked at.
//
//	services.go            the Services, and their manifests
//	backends.go            the servers
//	fault.go               the faults that there are, in words
//	tcp.go udp.go port_*   how a server has a fault
//	api.go                 the routes
//	requests.go            the clients
//	ask.go                 a client of a demo that runs
//	scenario.go play.go    a timetable of load and faults: its file, and how it is played
//	demo.go                start, stop, and what is printed first
package demo
