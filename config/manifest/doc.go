// Package manifest is the source that reads Services from files: the YAML or JSON for kubectl apply, or from kubectl
// get -o yaml.
//
// It reads these objects, from files and from folders (their .yaml, .yml and .json files, without sub-folders and names
// that begin with a dot):
//
//	v1                    Service, Endpoints, Node, List, ServiceList, EndpointsList, NodeList
//	discovery.k8s.io/v1   EndpointSlice, EndpointSliceList; v1beta1, too
//	networking.k8s.io/v1  ServiceCIDR, ServiceCIDRList
//
// It skips other kinds with a warning. A file goes through these stages, each of which is a pure function in a file of
// that name:
//
//	../strict      a file's bytes  → documents → JSON, with the lines of errors
//	decode.go      JSON            → objects, strictly: an unknown or duplicate field is an error
//	defaults.go    an object       → the same with an API server's defaults
//	validate.go    an object       → an API server's errors
//	endpoints.go   an Endpoints    → the equivalent EndpointSlices
//	slice.go       an EndpointSlice of v1beta1 → the equivalent one of v1
//	read.go        all of the above in one
//	load.go        two readings    → the objects of a file: the last valid version of each
//	resolve.go     changes         → the owners of cluster IPs and node ports: see claims.go and allocate.go
//	translated.go  those Services  → the model, with errors and warnings
//
// The cost of a change is proportional to the change: an unchanged document is not decoded again, and the model is
// recomputed only for Services that the changed objects affect.
//
// Around these stages, load.go reads the files that changed, [Check] returns all errors of some files, and a [Source]
// watches files and passes on changes. The files are listed again each time that no file has changed for 25 ms.
//
// An error has as little effect as possible. An object with an error keeps its last valid version; a document that
// cannot be parsed keeps all objects of its file; other files are not affected. Every error names file, document,
// object and field, and the allowed values.
//
// Nothing is ever written: neither files nor status fields.
package manifest
