// Package diagnose finds what is usually wrong: it asks the usher that runs, looks at the node
// itself, and says of each thing that it finds how it is known, and what to do about it.
//
// What usher knows is asked for once (subject.go). Then each check looks at it, or at the node, by
// itself (checks.go, node.go); none takes longer than a few seconds, and all run at once. A new one is
// a function and a line in the table. result.go is what people read, and bundle.go collects what a maintainer
// would ask for, without secrets.
package diagnose
