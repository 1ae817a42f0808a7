// Package portaltest is what the specs of package portal's rooms share: network namespaces
// that stand for a node, its Pods and hosts outside, with listeners and clients in them, and
// targets and rules that are easy to read. It knows no mode.
package portaltest
