package fleet

import (
	"context"
	"fmt"

	"github.com/usherproxy/usher/config/kube"
	"github.com/usherproxy/usher/proxy/admin/client"
)

// Options select the usher instances.
type Options struct {
	Cluster   kube.Connection
	Namespace string // of the instances' Pods
	Node      string // limits the query to this node's instance; "" means all
	Address   string // "host:port", the instances' --admin-address; each is queried on its node's loopback
}

// Usher is an usher instance of a cluster.
type Usher struct {
	Node string // where it runs
	Pod  string // "namespace/name"
	*client.Client
}

// Finder finds the usher instances of a cluster. Its methods are safe for concurrent use.
type Finder interface {
	// Find returns the current usher instances, one for each node, sorted by node. Instances that it returned before
	// keep their clients. It returns an error if there is none.
	Find(context.Context) ([]Usher, error)
	// Close closes the connections to all instances. Their clients must not be used afterwards.
	Close()
}

// ForbiddenError names the missing permission.
type ForbiddenError struct {
	What      string // the forbidden operation
	Namespace string
	Err       error // the API server's answer
}

// Error implements error. It includes how to grant the permissions.
func (e *ForbiddenError) Error() string {
	return fmt.Sprintf(`%[1]s in namespace %[2]s is forbidden: %[3]v
Querying usher on the nodes requires permission to list pods, and to get and create
pods/portforward, in namespace %[2]s. An administrator can grant it with:
  kubectl -n %[2]s create role usher-list --verb=list --resource=pods
  kubectl -n %[2]s create role usher-ask --verb=get,create --resource=pods/portforward
  kubectl -n %[2]s create rolebinding usher-list --role=usher-list --user=NAME
  kubectl -n %[2]s create rolebinding usher-ask --role=usher-ask --user=NAME`, e.What, e.Namespace, e.Err)
}
