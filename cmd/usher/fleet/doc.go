// Package fleet finds the ushers of a cluster's nodes and asks them, from anywhere that reaches the
// API server: nothing has to be opened on the nodes.
//
//	usher --cluster ──▶ API server ──▶ kubelet ──▶ 127.0.0.1:10249 of the node
//	                    port-forward to the Pod of usher's DaemonSet
//
// [Fleet.Find] lists the Pods and gives each usher a client (fleet.go), which connects when it is
// first asked. [Ask] asks many at once, each with a time limit of its own (ask.go). merge.go puts
// together what they tell of the same Service or endpoint.
//
// All is done with the rights of who asks: to list Pods, and to port-forward to them, in the namespace
// of the DaemonSet. Which of them are missing is said by [ForbiddenError].
package fleet
