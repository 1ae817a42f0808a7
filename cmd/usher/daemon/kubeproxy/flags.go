package kubeproxy

import (
	"slices"
	"strings"

	kjson "sigs.k8s.io/json"
)

// A Flag is a flag of kube-proxy that sets a field of its file, or that has no effect
// in usher.
type Flag struct {
	Name string
	Bool bool // needs no value

	field  string // "" for a flag without effect
	decode func(string) any
}

// Flags are the flags of kube-proxy 1.37 for which usher has no flag of the same name.
var Flags = []Flag{
	text("bind-address", "bindAddress"),
	text("config-sync-period", "configSyncPeriod"),
	number("conntrack-max-per-core", "conntrack.maxPerCore"),
	number("conntrack-min", "conntrack.min"),
	boolFlag("conntrack-tcp-be-liberal", "conntrack.tcpBeLiberal"),
	text("conntrack-tcp-timeout-close-wait", "conntrack.tcpCloseWaitTimeout"),
	text("conntrack-tcp-timeout-established", "conntrack.tcpEstablishedTimeout"),
	text("conntrack-udp-timeout", "conntrack.udpTimeout"),
	text("conntrack-udp-timeout-stream", "conntrack.udpStreamTimeout"),
	text("detect-local-mode", "detectLocalMode"),
	{Name: "feature-gates", field: "featureGates", decode: gates},
	text("healthz-bind-address", "healthzBindAddress"),
	{Name: "healthz-port"},
	text("hostname-override", "hostnameOverride"),
	boolFlag("iptables-localhost-nodeports", "iptables.localhostNodePorts"),
	number("iptables-masquerade-bit", "iptables.masqueradeBit"),
	text("iptables-min-sync-period", "iptables.minSyncPeriod"),
	text("iptables-sync-period", "iptables.syncPeriod"),
	{Name: "ipvs-exclude-cidrs", field: "ipvs.excludeCIDRs", decode: list},
	text("ipvs-min-sync-period", "ipvs.minSyncPeriod"),
	text("ipvs-scheduler", "ipvs.scheduler"),
	boolFlag("ipvs-strict-arp", "ipvs.strictARP"),
	text("ipvs-sync-period", "ipvs.syncPeriod"),
	text("ipvs-tcp-timeout", "ipvs.tcpTimeout"),
	text("ipvs-tcpfin-timeout", "ipvs.tcpFinTimeout"),
	text("ipvs-udp-timeout", "ipvs.udpTimeout"),
	number("kube-api-burst", "clientConnection.burst"),
	text("kube-api-content-type", "clientConnection.contentType"),
	number("kube-api-qps", "clientConnection.qps"),
	text("log-flush-frequency", "logging.flushFrequency"),
	text("logging-format", "logging.format"),
	boolFlag("masquerade-all", "iptables.masqueradeAll"),
	text("metrics-bind-address", "metricsBindAddress"),
	{Name: "metrics-port"},
	number("oom-score-adj", "oomScoreAdj"),
	text("pod-bridge-interface", "detectLocal.bridgeInterface"),
	text("pod-interface-name-prefix", "detectLocal.interfaceNamePrefix"),
	boolFlag("profiling", "enableProfiling"),
	text("proxy-mode", "mode"),
	text("show-hidden-metrics-for-version", "showHiddenMetricsForVersion"),
	number("v", "logging.verbosity"),
	{Name: "vmodule"},
	{Name: "write-config-to"},
}

func text(name, field string) Flag {
	return Flag{Name: name, field: field, decode: func(s string) any { return s }}
}

// number is for numeric fields. Any other value stays a string, which checkTypes rejects.
func number(name, field string) Flag {
	return Flag{Name: name, field: field, decode: literal}
}

func boolFlag(name, field string) Flag {
	return Flag{Name: name, Bool: true, field: field, decode: literal}
}

// literal returns s as a JSON value, or else as a string.
func literal(s string) any {
	var v any
	if kjson.UnmarshalCaseSensitivePreserveInts([]byte(s), &v) != nil {
		return s
	}
	return v
}

func list(s string) any { return strings.Split(s, ",") }

// gates parses "One=true,Two=false".
func gates(s string) any {
	out := map[string]any{}
	for one := range strings.SplitSeq(s, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(one), "=")
		out[name] = literal(value)
	}
	return out
}

// put writes the fields that the flags set into doc. It returns the flag of each such
// field, and the flags without effect.
func put(doc map[string]any, values map[string]string) (from map[string]string, nothing []string) {
	from = map[string]string{}
	mode, given := values["proxy-mode"]
	if !given {
		mode, _ = doc["mode"].(string)
	}
	for _, f := range Flags {
		value, given := values[f.Name]
		switch {
		case !given:
			continue
		case f.field == "":
			nothing = append(nothing, "--"+f.Name+" (not used by usher)")
			continue
		}
		field := f.field
		if mode == modeNFTables && strings.HasSuffix(f.Name, "sync-period") { // as in kube-proxy, --iptables-sync-period applies there, too
			field = strings.Replace(field, "iptables.", "nftables.", 1)
		}
		keys := strings.Split(field, ".")
		at := doc
		for _, key := range keys[:len(keys)-1] {
			inner, _ := at[key].(map[string]any)
			if inner == nil {
				inner = map[string]any{}
			}
			if at[key] == nil { // checkTypes reports another value
				at[key] = inner
			}
			at = inner
		}
		at[keys[len(keys)-1]] = f.decode(value)
		from[field] = "--" + f.Name
	}
	return from, nothing
}

// flagOf returns the flag that set the field at path, or "".
func flagOf(from map[string]string, path string) string {
	for p := path; p != ""; p = p[:max(0, strings.LastIndexByte(p, '.'))] {
		if flag := from[p]; flag != "" {
			return flag
		}
	}
	return ""
}

// sumFlags returns one warning for all flags without effect.
func sumFlags(nothing []string) []string {
	if len(nothing) == 0 {
		return nil
	}
	slices.Sort(nothing)
	return []string{"kube-proxy flags without effect: " + strings.Join(slices.Compact(nothing), ", ")}
}
