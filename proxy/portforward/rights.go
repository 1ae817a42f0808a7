package portforward

import (
	"errors"
	"strings"
)

// forbidden means that the API server does not allow port-forward in a namespace.
type forbidden struct{ namespace string }

func (f forbidden) Error() string {
	return "port-forward is forbidden: requires get and create on pods/portforward in namespace " + f.namespace
}

// Futile makes package proxy skip the Service's other Pods.
func (forbidden) Futile() bool { return true }

// Forbidden is IsForbidden for packages that do not import this one.
func (forbidden) Forbidden() bool { return true }

// IsForbidden reports whether err is a missing permission to port-forward.
func IsForbidden(err error) bool {
	var f forbidden
	return errors.As(err, &f)
}

// rights is a command that creates a role with the permissions for port-forward to the Pods of a namespace.
// WebSocket needs the verb get, and from API server 1.35 on also create; SPDY needs create.
const rights = "kubectl create role usher-portforward --verb=get,create --resource=pods/portforward -n %s, and a rolebinding for it"

// plain returns err in the form in which an attempt reports it. If a permission is missing, plain logs it
// once per namespace.
func (d *Dialer) plain(p pod, err error) error {
	if err == nil || !strings.Contains(err.Error(), "is forbidden") { // SPDY's errors are texts
		return err
	}
	if _, logged := d.loggedRights.LoadOrStore(p.namespace, true); !logged {
		d.log.WithField("namespace", p.namespace).WithError(err).
			Errorf("The API server forbids port-forward; to allow it: "+rights, p.namespace)
	}
	return forbidden{p.namespace}
}
