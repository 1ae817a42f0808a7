package portforward

import (
	"errors"
	"strings"
)

// forbidden says that the API server does not allow port-forward in a namespace.
type forbidden struct{ namespace string }

func (f forbidden) Error() string {
	return "port-forward is forbidden: requires get and create on pods/portforward in namespace " + f.namespace
}

// Futile tells package proxy not to try the Service's other Pods.
func (forbidden) Futile() bool { return true }

// Forbidden says to those who do not link this package what IsForbidden says.
func (forbidden) Forbidden() bool { return true }

// IsForbidden reports whether err is for want of rights to port-forward.
func IsForbidden(err error) bool {
	var f forbidden
	return errors.As(err, &f)
}

// rights is what a user needs in a namespace to port-forward to its Pods, as a
// command that makes a role of it. WebSocket asks for the verb get, and API servers
// from 1.35 on for create as well; SPDY asks for create.
const rights = "kubectl create role usher-portforward --verb=get,create --resource=pods/portforward -n %s, and a rolebinding for it"

// plain returns err in the words that an attempt is reported with. If it is for want
// of rights, the log says once for a namespace which.
func (d *Dialer) plain(p pod, err error) error {
	if err == nil || !strings.Contains(err.Error(), "is forbidden") { // SPDY's errors are texts
		return err
	}
	if _, told := d.toldOfRights.LoadOrStore(p.namespace, true); !told {
		d.log.WithField("namespace", p.namespace).WithError(err).
			Errorf("The API server forbids port-forward; to allow it: "+rights, p.namespace)
	}
	return forbidden{p.namespace}
}
