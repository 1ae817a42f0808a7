package manifest

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/usherproxy/usher/config/translate"
)

// claim is a resource that only one Service can have: a cluster IP, or a port on the addresses of nodes.
type claim struct {
	addr     netip.Addr
	protocol corev1.Protocol
	nodePort int32
}

// claimRequest is a claim, with its field and the value there.
type claimRequest struct {
	claim
	path  *field.Path
	value any
	what  string // "IP" or "port"
}

// claimRequests returns the claims that svc names.
func claimRequests(svc *corev1.Service) []claimRequest {
	var out []claimRequest
	path := field.NewPath("spec")
	if hasClusterIPs(svc) {
		for i, ip := range svc.Spec.ClusterIPs {
			where := path.Child("clusterIP")
			if i > 0 {
				where = path.Child("clusterIPs").Index(i)
			}
			a, _ := translate.ParseAddr(ip)
			out = append(out, claimRequest{claim{addr: a}, where, ip, "IP"})
		}
	}
	for i, p := range svc.Spec.Ports {
		if p.NodePort != 0 {
			out = append(out, claimRequest{claim{protocol: p.Protocol, nodePort: p.NodePort}, path.Child("ports").Index(i).Child("nodePort"), p.NodePort, "port"})
		}
	}
	if p := svc.Spec.HealthCheckNodePort; p != 0 {
		out = append(out, claimRequest{claim{protocol: corev1.ProtocolTCP, nodePort: p}, path.Child("healthCheckNodePort"), p, "port"})
	}
	return out
}

// claims maps each claim to its Service.
type claims map[claim]types.NamespacedName

// grant gives name all claims in ws. If another Service has one of them, it gives none and returns an error.
func (c claims) grant(name types.NamespacedName, ws []claimRequest) error {
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

// offset returns the address n after the start of network.
func offset(network netip.Prefix, n uint64) netip.Addr {
	if a := network.Addr(); a.Is4() {
		b := a.As4()
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
		return netip.AddrFrom4(b)
	}
	b := network.Addr().As16()
	binary.BigEndian.PutUint64(b[8:], binary.BigEndian.Uint64(b[8:])+n)
	return netip.AddrFrom16(b)
}
