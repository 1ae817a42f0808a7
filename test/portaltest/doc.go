// Package portaltest contains helpers for the specs of the packages below portal: network
// namespaces that represent a node, its Pods and hosts outside, with listeners and clients in
// them, and readable targets and rules. It depends on no portal mode.
package portaltest
