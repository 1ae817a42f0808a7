package address

import (
	"github.com/usherproxy/usher/portal"
)

const name = "address"

var traits = portal.Traits{
	Installs: true, Local: true,
	About: "a route makes each cluster IP an address of this node,\nand usher listens on it.",
}
