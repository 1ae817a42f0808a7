package fleet

import (
	"context"
	"fmt"

	"github.com/usherproxy/usher/config/kube"
	"github.com/usherproxy/usher/proxy/admin/client"
)

// Options say which ushers are meant.
type Options struct {
	Cluster   kube.Connection
	Namespace string // of the ushers' Pods
	Node      string // of the only usher that is meant; "" is all
	Address   string // "host:port", the ushers' --admin-address; each is asked on its own loopback
}

// Usher is one of a cluster.
type Usher struct {
	Node string // where it runs
	Pod  string // "namespace/name"
	*client.Client
}

// Finder finds the ushers of a cluster. Its methods may be called from any goroutine.
type Finder interface {
	// Find returns the ushers that there are now, sorted by node, one for each node. Those that were found before
	// have the same clients. That there is none is an error.
	Find(context.Context) ([]Usher, error)
	// Close ends the connections to all ushers. Their clients are of no use any more.
	Close()
}

// ForbiddenError says which right is missing.
type ForbiddenError struct {
	What      string // what is forbidden
	Namespace string
	Err       error // what the API server says
}

// Error implements error. It says how the rights are given.
func (e *ForbiddenError) Error() string {
	return fmt.Sprintf(`%[1]s in namespace %[2]s is forbidden: %[3]v
Querying usher on the nodes requires permission to list pods, and to get and create
pods/portforward, in namespace %[2]s. An administrator can grant it with:
  kubectl -n %[2]s create role usher-list --verb=list --resource=pods
  kubectl -n %[2]s create role usher-ask --verb=get,create --resource=pods/portforward
  kubectl -n %[2]s create rolebinding usher-list --role=usher-list --user=NAME
  kubectl -n %[2]s create rolebinding usher-ask --role=usher-ask --user=NAME`, e.What, e.Namespace, e.Err)
}

// Unwrap returns what the API server says.
func (e *ForbiddenError) Unwrap() error { return e.Err }
