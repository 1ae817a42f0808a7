// Package manifest is the source that reads Services from files: the YAML or JSON that kubectl apply reads, or that
// kubectl get -o yaml writes.
//
// It reads the following objects from files and from folders. Of a folder it reads the .yaml, .yml and .json files, but
// not sub-folders, nor files whose name begins with a dot:
//
//	v1                    Service, Endpoints, Node, List, ServiceList, EndpointsList, NodeList
//	discovery.k8s.io/v1   EndpointSlice, EndpointSliceList; v1beta1, too
//	networking.k8s.io/v1  ServiceCIDR, ServiceCIDRList
//
// It skips other kinds with a warning. A file goes through these stages, each in the file of that name. All are pure
// functions, except that the last two stages keep state:
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
// The cost of a change is proportional to the change. An unchanged document is not decoded again. The model is
// recomputed only for Services that the changed objects affect.
//
// Around these stages, load.go reads the files that changed. [Check] returns all errors of some files. A [Source]
// watches files and passes on their changes. It reads changed files once there was no change for 25 ms, or after 300 ms
// of constant change.
//
// An error has as little effect as possible. An object with an error keeps its last valid version. If a document cannot
// be parsed, its file keeps all previous objects that no other document defines. Other files are not affected. Every
// error names file, document, object and field, and the allowed values.
//
// usher writes nothing: neither files nor status fields.
package manifest
