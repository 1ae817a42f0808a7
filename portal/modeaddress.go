package portal

const addressName = "address"

var addressTraits = Traits{
	Installs: true, Local: true,
	About: "a route makes each cluster IP an address of this node,\nand usher listens on it.",
}
