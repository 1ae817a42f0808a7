// Package manifest is the source that takes Services from files: the YAML or
// JSON that one would give to kubectl apply, or that kubectl get -o yaml prints.
//
// What is read, from files and from folders (the .yaml, .yml and .json files in
// them, not in their sub-folders, and none whose name begins with a dot):
//
//	v1                    Service, Endpoints, Node, List, ServiceList, EndpointsList, NodeList
//	discovery.k8s.io/v1   EndpointSlice, EndpointSliceList; v1beta1, too
//	networking.k8s.io/v1  ServiceCIDR, ServiceCIDRList
//
// Other kinds are passed over with a warning. A file goes through these stages,
// each of which is a pure function in a file of that name:
//
//	../strict      a file's bytes  → documents → JSON, with the lines of mistakes
//	decode.go      JSON            → objects, strictly: an unknown or duplicate field is an error
//	defaults.go    an object       → the same with what an API server fills in
//	validate.go    an object       → what an API server would say against it
//	endpoints.go   an Endpoints    → the EndpointSlices that it stands for
//	slice.go       an EndpointSlice of v1beta1 → the one of v1 that it stands for
//	read.go        all of the above in one
//	load.go        two readings    → the objects of a file: the last good version of each
//	resolve.go     what changed    → who has which cluster IPs and node ports: see claims.go and allocate.go
//	translated.go  those Services  → the model, and what is to be told of it
//
// A change costs what it changes: a document whose text is as it was is not decoded
// again, and the model is made anew of what the objects that changed have to do with.
//
// Around them, load.go reads the files that changed, [Check] says all that is wrong with some
// files, and a [Source] watches files and hands over what changes. Which files there are is
// determined each time by listing all of them, once no file has changed for 25 ms.
//
// A mistake costs as little as it can. An object with a mistake keeps its last
// good version; a document that cannot be read at all keeps everything that its
// file held; other files are not affected. Every error names file, document,
// object and field, and says what is allowed.
//
// Nothing is ever written: neither files nor status fields.
package manifest
