// Package kubeproxy reads kube-proxy's configuration file, so that usher can replace
// kube-proxy on a node with the existing file.
//
// The file contains one KubeProxyConfiguration of kubeproxy.config.k8s.io/v1alpha1.
// [Read] decodes it, validates it, and returns [Settings]: the values that usher uses, as
// flags of 'usher run' where there is one. Settings omits fields that the file does not
// set: usher's defaults apply to these.
//
//	decode.go    bytes → object; values of the wrong type
//	flags.go     kube-proxy's flags and their fields
//	settings.go  object → Settings; values that are not allowed
//	fields.go    fields that usher uses, and why it does not use the others
//
// Nothing is ignored silently: for each field that is set but has no effect, Read returns
// a warning.
package kubeproxy
