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

// used are the fields that usher uses, whatever they are set to. What depends on
// other fields is in conditional.
var used = map[string]bool{
	"apiVersion":                          true,
	"kind":                                true,
	"clientConnection.kubeconfig":         true,
	"clientConnection.acceptContentTypes": true,
	"clientConnection.contentType":        true,
	"clientConnection.qps":                true,
	"clientConnection.burst":              true,
	"logging.format":                      true,
	"logging.verbosity":                   true,
	"hostnameOverride":                    true,
	"healthzBindAddress":                  true,
	"metricsBindAddress":                  true,
	"bindAddressHardFail":                 true,
	"mode":                                true,
	"detectLocalMode":                     true,
	"nodePortAddresses":                   true,
	"configSyncPeriod":                    true,
	"portRange":                           true,
	"conntrack.maxPerCore":                true,
	"conntrack.min":                       true,
	"conntrack.tcpBeLiberal":              true,
	"conntrack.tcpCloseWaitTimeout":       true,
	"conntrack.tcpEstablishedTimeout":     true,
	"conntrack.udpStreamTimeout":          true,
	"conntrack.udpTimeout":                true,
}

// unused says why usher does not use a field, or any field below it.
var unused = map[string]string{
	"featureGates":                "usher has no feature gates",
	"logging.flushFrequency":      "usher writes each line of its log at once",
	"logging.vmodule":             "usher has one log level for everything",
	"logging.options":             "usher writes its log to standard error, without a buffer",
	"enableProfiling":             "usher serves no /debug/pprof",
	"showHiddenMetricsForVersion": "usher hides no metrics",
	"iptables.masqueradeBit":      "usher masquerades nothing, and has a mark of its own (--mark)",
	"iptables.masqueradeAll":      "endpoints see the node's address with --client-address=node",
	"nftables.masqueradeBit":      "usher masquerades nothing, and has a mark of its own (--mark)",
	"nftables.masqueradeAll":      "endpoints see the node's address with --client-address=node",
	"ipvs.tcpTimeout":             "usher does not use IPVS; --connection-idle-timeout ends silent connections",
	"ipvs.tcpFinTimeout":          "usher does not use IPVS; --half-closed-timeout ends connections that one side has closed",
	"ipvs.udpTimeout":             "usher does not use IPVS; --udp-idle-timeout ends silent sessions",
	"ipvs.excludeCIDRs":           "usher does not use IPVS, and leaves the rules of others alone",
	"ipvs.strictARP":              "usher does not use IPVS, and has VIPs on no interface that answers ARP for them",
	"winkernel":                   "usher does not run on Windows as a proxy of the kernel",
	"windowsRunAsService":         "usher is not a Windows service",
	"oomScoreAdj":                 "usher does not change its own score; what starts it does (the kubelet by the priority class, systemd by OOMScoreAdjust)",
}

// former are fields that KubeProxyConfiguration had when kube-proxy had a
// userspace mode. Files from then are not wrong.
var former = map[string]string{
	"udpIdleTimeout": "the field is gone since Kubernetes 1.26",
}

// conditional are fields that usher uses or not, depending on other fields. They
// return why not, or "".
var conditional = map[string]func(c *v1alpha1.KubeProxyConfiguration) string{
	"bindAddress":                     whyNotBindAddress,
	"clusterCIDR":                     whyNotClusterCIDR,
	"detectLocal.bridgeInterface":     whyNotLocal(localBridge),
	"detectLocal.interfaceNamePrefix": whyNotLocal(localPrefix),
	"iptables.localhostNodePorts":     whyNotLocalhostNodePorts,
	"iptables.syncPeriod":             whyNotPeriod("iptables"),
	"iptables.minSyncPeriod":          whyNotPeriod("iptables"),
	"nftables.syncPeriod":             whyNotPeriod("nftables"),
	"nftables.minSyncPeriod":          whyNotPeriod("nftables"),
	"ipvs.syncPeriod":                 whyNotPeriod("ipvs"),
	"ipvs.minSyncPeriod":              whyNotPeriod("ipvs"),
	"ipvs.scheduler":                  whyNotScheduler,
}

func whyNotScheduler(c *v1alpha1.KubeProxyConfiguration) string {
	name, known := ipvsSchedulers[c.IPVS.Scheduler]
	switch {
	case c.Mode != modeIPVS:
		return fmt.Sprintf("mode is %q, and not %s; --scheduler is for all modes", c.Mode, modeIPVS)
	case known && name == "":
		return "usher has no such scheduler, and --scheduler counts"
	}
	return ""
}

func whyNotBindAddress(c *v1alpha1.KubeProxyConfiguration) string {
	addr, err := netip.ParseAddr(c.BindAddress)
	if err != nil || addr.IsUnspecified() || primaryNodePorts(c) {
		return ""
	}
	return "nothing listens there, in kube-proxy neither; it is the node's address, which only nodePortAddresses [primary] asks for"
}

func whyNotClusterCIDR(c *v1alpha1.KubeProxyConfiguration) string {
	if usesClusterCIDR(c) {
		return ""
	}
	return fmt.Sprintf("detectLocalMode is %s, and not %s", c.DetectLocalMode, localClusterCIDR)
}

func whyNotLocal(mode v1alpha1.LocalMode) func(*v1alpha1.KubeProxyConfiguration) string {
	return func(c *v1alpha1.KubeProxyConfiguration) string {
		if c.DetectLocalMode == mode {
			return ""
		}
		return fmt.Sprintf("detectLocalMode is %q, and not %s", c.DetectLocalMode, mode)
	}
}

func whyNotLocalhostNodePorts(c *v1alpha1.KubeProxyConfiguration) string {
	if on := c.IPTables.LocalhostNodePorts; on == nil || *on {
		return ""
	}
	return "usher serves node ports on loopback too; nodePortAddresses can leave it out"
}

func whyNotPeriod(section string) func(*v1alpha1.KubeProxyConfiguration) string {
	return func(c *v1alpha1.KubeProxyConfiguration) string {
		path, _, _ := periods(c)
		if path.String() == section {
			return ""
		}
		return fmt.Sprintf("mode is %q, for which the periods in the section %s count", c.Mode, path)
	}
}

// ignored yields each field that is set and means nothing to usher, with a warning.
// doc is c as it was written.
func ignored(c *v1alpha1.KubeProxyConfiguration, doc map[string]any) iter.Seq2[string, string] {
	return func(yield func(path, warning string) bool) {
		for keys, value := range leaves(nil, doc) {
			path := strings.Join(keys, ".")
			why := whyNot(c, path)
			// Of the values that mean "nothing" as a rule, these say something.
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

// unknown is said of a field that there is not.
const unknown = "there is no such field"

// whyNot returns why the field at path is not used, or "" if it is.
func whyNot(c *v1alpha1.KubeProxyConfiguration, path string) string {
	if used[path] {
		return ""
	}
	if why, ok := conditional[path]; ok {
		return why(c)
	}
	for p := path; p != ""; p = p[:max(0, strings.LastIndexByte(p, '.'))] {
		if why, ok := unused[p]; ok {
			return why
		}
		if why, ok := former[p]; ok {
			return why
		}
	}
	return unknown
}

// leaves yields the values in doc that are not maps with something in them, and
// the keys that lead there, in the order of the keys.
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

// empty reports whether a value of JSON is what a field has that nobody set.
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
