package kubeproxy

import (
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/kube-proxy/config/v1alpha1"
)

// unused gives the reason why usher does not use a field, or any field below it. udpIdleTimeout belonged to
// kube-proxy's former userspace mode: files that set it are valid.
var unused = map[string]string{
	"featureGates":                "usher has no feature gates",
	"logging.flushFrequency":      "usher writes each log line at once",
	"logging.vmodule":             "usher has one log level for everything",
	"logging.options":             "usher writes its log to standard error, without a buffer",
	"enableProfiling":             "usher serves no /debug/pprof",
	"showHiddenMetricsForVersion": "usher hides no metrics",
	"iptables.masqueradeBit":      "usher does not masquerade, and uses its own mark (--mark)",
	"iptables.masqueradeAll":      "use --client-address=node instead",
	"nftables.masqueradeBit":      "usher does not masquerade, and uses its own mark (--mark)",
	"nftables.masqueradeAll":      "use --client-address=node instead",
	"ipvs.tcpTimeout":             "usher does not use IPVS; use --connection-idle-timeout for idle connections",
	"ipvs.tcpFinTimeout":          "usher does not use IPVS; use --half-closed-timeout for half-closed connections",
	"ipvs.udpTimeout":             "usher does not use IPVS; use --udp-idle-timeout for idle sessions",
	"ipvs.excludeCIDRs":           "usher does not use IPVS, and does not change rules of other programs",
	"ipvs.strictARP":              "usher does not use IPVS; with --portal=address, set net.ipv4.conf.all.arp_ignore=1 instead",
	"winkernel":                   "usher does not support the Windows kernel proxy",
	"windowsRunAsService":         "usher is not a Windows service",
	"udpIdleTimeout":              "the field was removed in Kubernetes 1.26",
	"oomScoreAdj":                 "usher does not read an OOM score; set it where usher is started (kubelet: priority class, systemd: OOMScoreAdjust)",
}

// conditional returns the reason why usher does not use a field whose use depends on other fields, or "".
func conditional(c *v1alpha1.KubeProxyConfiguration, path string) string {
	periodSection, _, _ := periods(c)
	section, name, _ := strings.Cut(path, ".")
	switch {
	case path == "bindAddress":
		addr, err := netip.ParseAddr(c.BindAddress)
		selects := addr.Unmap().Is6() && (c.HealthzBindAddress == "" || c.MetricsBindAddress == "") // their default
		if err == nil && !addr.IsUnspecified() && !primaryNodePorts(c) && !selects {
			return "neither usher nor kube-proxy listens there; it is the node address, used only with nodePortAddresses [primary]"
		}
	case path == "clusterCIDR" && !usesClusterCIDR(c):
		return fmt.Sprintf("detectLocalMode is %s, not %s", c.DetectLocalMode, localClusterCIDR)
	case path == "detectLocal.bridgeInterface" && c.DetectLocalMode != localBridge:
		return fmt.Sprintf("detectLocalMode is %q, not %s", c.DetectLocalMode, localBridge)
	case path == "detectLocal.interfaceNamePrefix" && c.DetectLocalMode != localPrefix:
		return fmt.Sprintf("detectLocalMode is %q, not %s", c.DetectLocalMode, localPrefix)
	case path == "iptables.localhostNodePorts":
		if on := c.IPTables.LocalhostNodePorts; on != nil && !*on {
			return "usher also serves node ports on loopback; use nodePortAddresses to exclude it"
		}
	case (name == "syncPeriod" || name == "minSyncPeriod") && section != periodSection.String():
		return fmt.Sprintf("mode is %q, which uses the periods in section %s", c.Mode, periodSection)
	case path == "ipvs.scheduler" && c.Mode != modeIPVS:
		return fmt.Sprintf("mode is %q, not %s; --scheduler applies to all modes", c.Mode, modeIPVS)
	case path == "ipvs.scheduler":
		if scheduler, known := ipvsSchedulers[c.IPVS.Scheduler]; known && scheduler == "" {
			return "usher has no such scheduler; --scheduler applies"
		}
	}
	return ""
}

// ignored yields each field that is set but has no effect, with a warning.
// doc is c as it was written.
func ignored(c *v1alpha1.KubeProxyConfiguration, doc map[string]any) iter.Seq2[string, string] {
	return func(yield func(path, warning string) bool) {
		for keys, value := range leaves(nil, doc) {
			path := strings.Join(keys, ".")
			why := whyNot(c, path)
			// An empty value means "not set", except in these fields.
			said := path == "iptables.localhostNodePorts" && value == false || keys[0] == "featureGates" || why == unknown
			if why == "" || empty(value) && !said {
				continue
			}
			text, _ := json.Marshal(value) // it was read from JSON
			if !yield(path, fmt.Sprintf("%s: %s has no effect: %s", path, text, why)) {
				return
			}
		}
	}
}

// unknown is the reason for a field that does not exist.
const unknown = "unknown field"

// whyNot returns why the field at path is not used, or "" if it is.
func whyNot(c *v1alpha1.KubeProxyConfiguration, path string) string {
	for p := path; p != ""; p = p[:max(0, strings.LastIndexByte(p, '.'))] {
		if why, ok := unused[p]; ok {
			return why
		}
	}
	keys := strings.Split(path, ".")
	if _, depth := fieldType(keys); depth < len(keys) {
		return unknown
	}
	return conditional(c, path)
}

// leaves yields the values in doc, except maps with entries: it descends into these. Each value
// comes with the keys of its path. The paths are sorted.
func leaves(prefix []string, doc map[string]any) iter.Seq2[[]string, any] {
	return func(yield func([]string, any) bool) {
		for _, key := range slices.Sorted(maps.Keys(doc)) {
			keys := append(slices.Clip(prefix), key)
			inner, _ := doc[key].(map[string]any)
			if len(inner) == 0 {
				if !yield(keys, doc[key]) {
					return
				}
				continue
			}
			for k, v := range leaves(keys, inner) {
				if !yield(k, v) {
					return
				}
			}
		}
	}
}

// empty reports whether a JSON value equals that of a field that is not set.
// Durations and quantities are strings there.
func empty(value any) bool {
	switch v := value.(type) {
	case string:
		d, err := time.ParseDuration(v)
		return v == "" || err == nil && d == 0
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return value == nil || reflect.ValueOf(value).IsZero()
}
