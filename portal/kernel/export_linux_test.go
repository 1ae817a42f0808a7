package kernel

// OpenPathsAsking is OpenPaths with a parameter for the request that lists the interfaces.
var OpenPathsAsking = openPaths

// RequestLinks is the request that OpenPaths uses.
var RequestLinks = requestLinks
