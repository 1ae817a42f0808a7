package manifest

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// claim is something that only one Service can have: a cluster IP, or a port on
// the node's addresses.
type claim struct {
	addr     netip.Addr
	protocol corev1.Protocol
	nodePort int32
}

// wish is a claim, where it is made, and how it is written there.
type wish struct {
	claim
	path  *field.Path
	value any
	what  string // "IP" or "port"
}

// wishes returns what svc claims by naming it.
func wishes(svc *corev1.Service) []wish {
	var out []wish
	path := field.NewPath("spec")
	if hasClusterIPs(svc) {
		for i, ip := range svc.Spec.ClusterIPs {
			where := path.Child("clusterIP")
			if i > 0 {
				where = path.Child("clusterIPs").Index(i)
			}
			out = append(out, wish{claim{addr: clusterAddr(ip)}, where, ip, "IP"})
		}
	}
	for i, p := range svc.Spec.Ports {
		if p.NodePort != 0 {
			out = append(out, wish{claim{protocol: p.Protocol, nodePort: p.NodePort}, path.Child("ports").Index(i).Child("nodePort"), p.NodePort, "port"})
		}
	}
	if p := svc.Spec.HealthCheckNodePort; p != 0 {
		out = append(out, wish{claim{protocol: corev1.ProtocolTCP, nodePort: p}, path.Child("healthCheckNodePort"), p, "port"})
	}
	return out
}

// claims says which Service has what.
type claims map[claim]types.NamespacedName

// grant gives name all that it wishes, or nothing and says why not.
func (c claims) grant(name types.NamespacedName, ws []wish) error {
	for _, w := range ws {
		if owner, taken := c[w.claim]; taken && owner != name {
			return field.Invalid(w.path, w.value, fmt.Sprintf("provided %s is already allocated to Service %s", w.what, owner))
		}
	}
	for _, w := range ws {
		c[w.claim] = name
	}
	return nil
}

// taken reports whether a Service has the cluster IP a.
func (c claims) taken(a netip.Addr) bool {
	_, taken := c[claim{addr: a}]
	return taken
}
