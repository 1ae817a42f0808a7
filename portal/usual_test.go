package portal

// usual is a setting in which nothing is missing.
var usual = setting{comment: true, addrtype: true, landing: landingOf(IPv4)}
