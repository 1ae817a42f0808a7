// Package serve is shared by the commands that serve Services: 'usher run' and 'usher demo' on nodes, 'kubectl usher
// exec' and 'connect' on laptops. [Flags] builds a daemon's Config, and [Run] runs a daemon until a signal stops it.
package serve
