package manifest

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"github.com/usherproxy/usher/config"
)

// networks are the service CIDRs: at most one of each family, the default family's first.
type networks []netip.Prefix

// of returns the network of that family; the zero Prefix if there is none.
func (n networks) of(f config.Family) netip.Prefix {
	for _, c := range n {
		if config.FamilyOf(c.Addr()) == f {
			return c
		}
	}
	return netip.Prefix{}
}

func (n networks) has(f corev1.IPFamily) bool { return n.of(familyOf(f)).IsValid() }

func familyOf(f corev1.IPFamily) config.Family {
	if f == corev1.IPv6Protocol {
		return config.IPv6
	}
	return config.IPv4
}

func other(f corev1.IPFamily) corev1.IPFamily {
	if f == corev1.IPv6Protocol {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// chooseFamilies fills in ipFamilyPolicy and ipFamilies of a valid Service, as an API server does when the Service is
// created. Afterwards ipFamilies has the family of every cluster IP that the Service has or needs.
//
// One rule is missing: a cluster IP in the manifest may have any family, since it needs no network for allocation.
func (n networks) chooseFamilies(svc *corev1.Service) field.ErrorList {
	spec, path := &svc.Spec, field.NewPath("spec")
	if spec.Type == corev1.ServiceTypeExternalName || spec.ClusterIP == corev1.ClusterIPNone {
		return nil // no addresses
	}
	if spec.IPFamilyPolicy == nil {
		spec.IPFamilyPolicy = new(corev1.IPFamilyPolicySingleStack)
	}
	var errs field.ErrorList
	if *spec.IPFamilyPolicy == corev1.IPFamilyPolicySingleStack {
		const rule = "must be 'RequireDualStack' or 'PreferDualStack' when multiple %s are specified"
		if len(spec.ClusterIPs) > 1 {
			errs = append(errs, field.Invalid(path.Child("ipFamilyPolicy"), *spec.IPFamilyPolicy, fmt.Sprintf(rule, "cluster IPs")))
		}
		if len(spec.IPFamilies) > 1 {
			errs = append(errs, field.Invalid(path.Child("ipFamilyPolicy"), *spec.IPFamilyPolicy, fmt.Sprintf(rule, "IP families")))
		}
		if len(errs) > 0 {
			return errs
		}
	}
	for i, ip := range spec.ClusterIPs {
		if i >= len(spec.IPFamilies) {
			spec.IPFamilies = append(spec.IPFamilies, ipFamilyOf(ip))
		}
	}
	if len(spec.IPFamilies) == 0 {
		spec.IPFamilies = []corev1.IPFamily{corev1.IPFamily(config.FamilyOf(n[0].Addr()).String())}
	}
	if second := other(spec.IPFamilies[0]); *spec.IPFamilyPolicy != corev1.IPFamilyPolicySingleStack && len(spec.IPFamilies) == 1 {
		switch {
		case n.has(second):
			spec.IPFamilies = append(spec.IPFamilies, second)
		case *spec.IPFamilyPolicy == corev1.IPFamilyPolicyRequireDualStack:
			errs = append(errs, field.Invalid(path.Child("ipFamilyPolicy"), *spec.IPFamilyPolicy,
				noNetwork(second)))
		}
	}
	for i := len(spec.ClusterIPs); i < len(spec.IPFamilies); i++ {
		if f := spec.IPFamilies[i]; !n.has(f) {
			errs = append(errs, field.Invalid(path.Child("ipFamilies").Index(i), f, noNetwork(f)))
		}
	}
	return errs
}

func noNetwork(f corev1.IPFamily) string {
	return fmt.Sprintf("no service CIDR for %s addresses; --service-cidr accepts one per IP family", f)
}

func ipFamilyOf(ip string) corev1.IPFamily {
	if netutils.IsIPv6String(ip) {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

// hasClusterIPs reports whether svc has or needs cluster IPs.
func hasClusterIPs(svc *corev1.Service) bool {
	return svc.Spec.Type != corev1.ServiceTypeExternalName && !slices.Contains(svc.Spec.ClusterIPs, corev1.ClusterIPNone)
}
