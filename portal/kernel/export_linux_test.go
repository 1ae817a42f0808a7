package kernel

// OpenPathsAsking is OpenPaths that asks for the list of interfaces by request.
var OpenPathsAsking = openPaths

// RequestLinks is what OpenPaths asks by.
var RequestLinks = requestLinks
