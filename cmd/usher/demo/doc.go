// Package demo implements 'usher demo': a Service of each kind, with
// servers in this process that can be broken and repaired.
//
// [Start] starts the servers on loopback ports and writes the manifests that make
// them the endpoints of Services, for a proxy that the caller runs. Handler adds the
// routes for 'usher demo break' and 'repair' to the proxy's API. [AskAll] is
// the client. The package also prints the output for users, since the purpose of
// the demo is to be watched.
//
//	services.go            the Services, and their manifests
//	backends.go            the servers
//	fault.go               the possible faults and their descriptions
//	tcp.go udp.go port_*   how a server acts out a fault
//	api.go                 the routes
//	requests.go            the clients
//	ask.go                 a client of a running demo
//	scenario.go play.go    a timetable of load and faults: its file, and how it is played
//	demo.go                start, stop, and the introductory output
package demo
