// Package kubeproxy reads kube-proxy's configuration file, so that usher can take
// kube-proxy's place on a node with the file that is already there.
//
// The file holds one KubeProxyConfiguration of kubeproxy.config.k8s.io/v1alpha1.
// [Read] decodes it, validates it, and returns [Settings]: what usher uses, as values
// of flags of 'usher run' where there is one. What the file does not say is not there,
// so the caller can let a flag win over the file, and the file over a default.
//
//	decode.go    bytes → object; values of the wrong type
//	flags.go     which flags of kube-proxy's stand for which field
//	settings.go  object → Settings; values that are not allowed
//	fields.go    which fields usher uses, and why it does not use the others
//
// Nothing is ignored silently: a field that is set and means nothing to usher is
// in the warnings.
package kubeproxy
