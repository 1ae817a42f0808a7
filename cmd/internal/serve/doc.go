// Package serve has what the commands share that serve Services: 'usher run' and 'usher demo' on nodes, 'kubectl
// usher exec' and 'connect' on laptops. [Flags] makes a daemon's Config of flags, and [Run] runs a daemon until a
// signal stops it.
package serve
