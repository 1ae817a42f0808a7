package kubeproxy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kube-proxy/config/v1alpha1"

	"github.com/usherproxy/usher/cmd/usher/daemon"
	"github.com/usherproxy/usher/portal"
)

// Settings are the values of a KubeProxyConfiguration that usher uses. A zero value means
// that the file does not set it.
type Settings struct {
	// Flags are values for flags of 'usher run', by name, where there is a flag. They are
	// never empty.
	Flags map[string]string

	// AcceptContentTypes and ContentType are the encodings of the connection to
	// the API server, as in the HTTP headers Accept and Content-Type.
	AcceptContentTypes, ContentType string
	// QPS and Burst limit the requests per second; a negative QPS means no limit.
	QPS   float32
	Burst int
	// Resync is the interval of full recomputation (configSyncPeriod).
	Resync time.Duration

	// NodeIP is this node's primary address in its IP family (bindAddress). usher does not
	// listen there; the address is used for node ports on primary addresses.
	NodeIP netip.Addr
	// PodInterfaces are the interfaces of this node's Pods: a name (detectLocal.bridgeInterface),
	// or a name prefix and a + (detectLocal.interfaceNamePrefix). Clients behind other interfaces
	// then do not count as Pods. Empty: networks identify the Pods.
	PodInterfaces portal.Interfaces
	// Conntrack is nil if none of its fields is set. Unset fields have kube-proxy's defaults.
	Conntrack *daemon.Conntrack
}

// kube-proxy's ports (pkg/cluster/ports), for addresses without one.
const (
	healthzPort = 10256
	metricsPort = 10249
)

// leastCheckInterval is the shortest CheckInterval, the same as for the flag
// --portal-check-interval.
const leastCheckInterval = 100 * time.Millisecond

// Read reads the file at path, "" for none, and the given kube-proxy flags, by name. A
// flag overrides the file. The warnings name settings without effect. The error names
// every invalid setting: file, field, value, and the allowed values.
func Read(path string, flags map[string]string) (*Settings, []string, error) {
	doc := map[string]any{}
	var errs []error
	if path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, nil, err
		}
		doc, errs = parse(text)
	} else {
		path = "kube-proxy flags"
	}
	var s *Settings
	var warnings, nothing []string
	if len(errs) == 0 {
		var from map[string]string
		from, nothing = put(doc, flags)
		var c *v1alpha1.KubeProxyConfiguration
		if c, errs = decode(doc); len(errs) == 0 {
			var list field.ErrorList
			s, list = settings(c)
			for _, err := range list {
				errs = append(errs, err)
			}
			for field, warning := range ignored(c, doc) {
				if flag := flagOf(from, field); flag != "" {
					nothing = append(nothing, flag+" ("+whyNot(c, field)+")")
				} else {
					warnings = append(warnings, path+": "+warning)
				}
			}
		}
	}
	for i, err := range errs {
		errs[i] = fmt.Errorf("%s: %w", path, err)
	}
	if len(errs) > 0 {
		return nil, nil, errors.Join(errs...)
	}
	return s, append(warnings, sumFlags(nothing)...), nil
}

// Changed returns the fields in which two versions of a file differ.
func Changed(before, after []byte) (fields []string) {
	was, _ := parse(before)
	now, errs := parse(after)
	if len(errs) > 0 {
		return []string{"the file is invalid now"}
	}
	values := map[string][2][]any{} // of each field, at most one value before and one after
	for i, doc := range []map[string]any{was, now} {
		for keys, value := range leaves(nil, doc) {
			path := strings.Join(keys, ".")
			both := values[path]
			both[i] = []any{value}
			values[path] = both
		}
	}
	for path, both := range values {
		if !reflect.DeepEqual(both[0], both[1]) {
			fields = append(fields, path)
		}
	}
	slices.Sort(fields)
	return fields
}

// settings validates the fields of c that usher uses.
func settings(c *v1alpha1.KubeProxyConfiguration) (*Settings, field.ErrorList) {
	var v validator
	s := &Settings{
		AcceptContentTypes: v.contentTypes(field.NewPath("clientConnection", "acceptContentTypes"), c.ClientConnection.AcceptContentTypes),
		ContentType:        v.contentTypes(field.NewPath("clientConnection", "contentType"), c.ClientConnection.ContentType),
		QPS:                c.ClientConnection.QPS,
		Burst:              v.burst(field.NewPath("clientConnection", "burst"), c.ClientConnection.Burst),
	}
	s.Flags = map[string]string{
		"kubeconfig":             c.ClientConnection.Kubeconfig,
		"node-name":              v.nodeName(field.NewPath("hostnameOverride"), c.HostnameOverride),
		"healthz-address":        v.addrPort(field.NewPath("healthzBindAddress"), c.HealthzBindAddress, healthzPort),
		"admin-address":          v.addrPort(field.NewPath("metricsBindAddress"), c.MetricsBindAddress, metricsPort),
		"bind-address-hard-fail": said(c.BindAddressHardFail),
		"nodeport-addresses":     v.nodePorts(field.NewPath("nodePortAddresses"), c.NodePortAddresses),
		"proxy-port-range":       v.portRange(field.NewPath("portRange"), c.PortRange),
		"log-level":              logLevel(uint32(c.Logging.Verbosity)),
		"log-format":             v.oneOf(field.NewPath("logging", "format"), c.Logging.Format, "text", "json"),
		"portal":                 v.mode(field.NewPath("mode"), c.Mode),
		"scheduler":              v.scheduler(c),
	}
	if len(c.NodePortAddresses) == 0 && c.Mode == modeNFTables { // kube-proxy's default there
		s.Flags["nodeport-addresses"] = primary
	}
	s.Resync = v.period(field.NewPath("configSyncPeriod"), c.ConfigSyncPeriod.Duration, 0)
	s.Conntrack = v.conntrack(field.NewPath("conntrack"), &c.Conntrack)
	if s.Conntrack != nil {
		s.Flags["udp-idle-timeout"] = said(s.Conntrack.UDPStream)
	}
	v.oneOf(field.NewPath("detectLocalMode"), string(c.DetectLocalMode), localModes...)
	if clusterCIDRs := v.clusterCIDRs(field.NewPath("clusterCIDR"), c.ClusterCIDR); usesClusterCIDR(c) {
		s.Flags["cluster-cidr"] = clusterCIDRs
	}
	s.PodInterfaces = v.podInterfaces(c)
	section, sync, minSync := periods(c)
	sync, minSync = v.period(section.Child("syncPeriod"), sync, leastCheckInterval), v.period(section.Child("minSyncPeriod"), minSync, 0)
	if sync > 0 && minSync > sync {
		v.invalid(section.Child("minSyncPeriod"), minSync.String(), fmt.Sprintf("must not be greater than %s, which is %s", section.Child("syncPeriod"), sync))
	}
	s.Flags["portal-check-interval"], s.Flags["max-sync-delay"] = said(sync), said(minSync)
	v.bindAddress(field.NewPath("bindAddress"), c.BindAddress, s)
	maps.DeleteFunc(s.Flags, func(_, value string) bool { return value == "" })
	return s, v.errs
}

// said returns v as the value of a flag; "" for a zero value, which means unset.
func said[T comparable](v T) string {
	var nothing T
	if v == nothing {
		return ""
	}
	return fmt.Sprint(v)
}

// primaryNodePorts reports whether node ports are on the node's primary addresses.
func primaryNodePorts(c *v1alpha1.KubeProxyConfiguration) bool {
	if len(c.NodePortAddresses) == 0 {
		return c.Mode == modeNFTables
	}
	return slices.Contains(c.NodePortAddresses, primary)
}

// primary selects the node's primary addresses, in kube-proxy's settings and in
// usher's.
const primary = "primary"

// periods returns the periods of the mode's section, and the path of
// that section. The old userspace mode also read the section of iptables.
func periods(c *v1alpha1.KubeProxyConfiguration) (section *field.Path, sync, minSync time.Duration) {
	switch c.Mode {
	case modeNFTables:
		return field.NewPath("nftables"), c.NFTables.SyncPeriod.Duration, c.NFTables.MinSyncPeriod.Duration
	case modeIPVS:
		return field.NewPath("ipvs"), c.IPVS.SyncPeriod.Duration, c.IPVS.MinSyncPeriod.Duration
	}
	return field.NewPath("iptables"), c.IPTables.SyncPeriod.Duration, c.IPTables.MinSyncPeriod.Duration
}

// The modes that kube-proxy has or had.
const (
	modeUserspace = "userspace"
	modeIPTables  = "iptables"
	modeNFTables  = "nftables"
	modeIPVS      = "ipvs"
)

// The local modes of kube-proxy (pkg/proxy/apis/config).
const (
	localClusterCIDR = "ClusterCIDR"
	localNodeCIDR    = "NodeCIDR"
	localBridge      = "BridgeInterface"
	localPrefix      = "InterfaceNamePrefix"
)

var localModes = []string{localClusterCIDR, localNodeCIDR, localBridge, localPrefix}

// usesClusterCIDR reports whether clusterCIDR identifies Pods.
func usesClusterCIDR(c *v1alpha1.KubeProxyConfiguration) bool {
	return c.DetectLocalMode == "" || c.DetectLocalMode == localClusterCIDR
}

// logLevel returns the level for a verbosity of klog. kube-proxy logs its changes
// at 2 and 3, and its checks from 4 on.
func logLevel(verbosity uint32) string {
	switch {
	case verbosity == 0: // the default, and so not set
		return ""
	case verbosity < 4:
		return "info"
	}
	return "debug"
}

// validator collects errors. Its methods return the zero value for an invalid value.
type validator struct {
	errs field.ErrorList
}

func (v *validator) invalid(path *field.Path, value any, allowed string) {
	v.errs = append(v.errs, field.Invalid(path, value, allowed))
}

func (v *validator) oneOf(path *field.Path, value string, allowed ...string) string {
	if value == "" {
		return ""
	}
	if !slices.Contains(allowed, value) {
		v.errs = append(v.errs, field.NotSupported(path, value, allowed))
		return ""
	}
	return value
}

func (v *validator) mode(path *field.Path, value v1alpha1.ProxyMode) string {
	mode := v.oneOf(path, string(value), modeUserspace, modeIPTables, modeNFTables, modeIPVS)
	if mode == modeUserspace || mode == modeIPVS {
		return "" // usher has no portal of that name and selects one itself
	}
	return mode
}

// ipvsSchedulers maps IPVS schedulers, by their names in the kernel (net/netfilter/ipvs), to
// usher's; "" means that usher has none.
var ipvsSchedulers = map[string]string{
	"rr": "rr", "wrr": "wrr", "lc": "lc", "wlc": "wlc", "sed": "sed", "nq": "nq", "sh": "sh", "dh": "dh",
	"mh": "maglev", "twos": "p2c", "lblc": "", "lblcr": "", "fo": "", "ovf": "",
}

// scheduler returns the scheduler of mode ipvs. Like kube-proxy, it ignores the setting in
// other modes.
func (v *validator) scheduler(c *v1alpha1.KubeProxyConfiguration) string {
	if c.Mode != modeIPVS {
		return ""
	}
	return ipvsSchedulers[v.oneOf(field.NewPath("ipvs", "scheduler"), c.IPVS.Scheduler, slices.Sorted(maps.Keys(ipvsSchedulers))...)]
}

// contentTypes checks a comma-separated list of media types.
func (v *validator) contentTypes(path *field.Path, value string) string {
	if value == "" {
		return ""
	}
	for one := range strings.SplitSeq(value, ",") {
		if kind, _, err := mime.ParseMediaType(one); err != nil || !strings.Contains(kind, "/") {
			v.invalid(path, value, "must be a media type such as application/json or application/vnd.kubernetes.protobuf")
			return ""
		}
	}
	return value
}

func (v *validator) burst(path *field.Path, value int32) int {
	if value < 0 {
		v.invalid(path, value, "must not be negative")
		return 0
	}
	return int(value)
}

// nodeName normalizes and checks the name as kube-proxy does.
func (v *validator) nodeName(path *field.Path, value string) string {
	name := strings.ToLower(strings.TrimSpace(value))
	if value == "" {
		return ""
	}
	if wrong := validation.IsDNS1123Subdomain(name); len(wrong) > 0 {
		v.invalid(path, value, "must be the name of a Node: "+strings.Join(wrong, "; "))
		return ""
	}
	return name
}

// addrPort returns "IP:port" unchanged, and adds the default port to an IP.
func (v *validator) addrPort(path *field.Path, value string, port uint16) string {
	if value == "" {
		return ""
	}
	if addr, err := netip.ParseAddr(value); err == nil {
		return netip.AddrPortFrom(addr, port).String()
	}
	host, portText, err := net.SplitHostPort(value)
	addr, addrErr := netip.ParseAddr(host)
	n, portErr := strconv.ParseUint(portText, 10, 16)
	if err != nil || addrErr != nil || portErr != nil || n == 0 {
		v.invalid(path, value, fmt.Sprintf("must be an IP address, or IP:port with a port from 1 to 65535, such as 127.0.0.1:%d or [::1]:%d", port, port))
		return ""
	}
	return netip.AddrPortFrom(addr, uint16(n)).String()
}

func (v *validator) nodePorts(path *field.Path, values []string) string {
	var words []string
	for i, value := range values {
		switch {
		case !slices.Contains([]string{primary, "localhost", "all"}, value):
			p, ok := v.cidr(path.Index(i), value, "must be a CIDR such as 192.168.0.0/16, or one of primary, localhost, all")
			if !ok {
				continue
			}
			value = p.String()
		case slices.Contains(values[:i], value):
			v.errs = append(v.errs, field.Duplicate(path.Index(i), value))
		}
		words = append(words, value)
	}
	return strings.Join(words, ",")
}

func (v *validator) clusterCIDRs(path *field.Path, value string) string {
	const allowed = "must be a CIDR such as 10.244.0.0/16, or one per IP family, separated by a comma"
	if value == "" {
		return ""
	}
	var networks []string
	families := map[bool]bool{} // the families of the networks so far: true is IPv4
	for text := range strings.SplitSeq(value, ",") {
		p, ok := v.cidr(path, strings.TrimSpace(text), allowed)
		if !ok {
			return ""
		}
		if families[p.Addr().Is4()] {
			v.invalid(path, value, allowed)
			return ""
		}
		families[p.Addr().Is4()] = true
		networks = append(networks, p.String())
	}
	return strings.Join(networks, ",")
}

// podInterfaces returns Settings.PodInterfaces. Like kube-proxy, it ignores settings of
// other modes.
func (v *validator) podInterfaces(c *v1alpha1.KubeProxyConfiguration) portal.Interfaces {
	path := field.NewPath("detectLocal")
	switch c.DetectLocalMode {
	case localBridge:
		return portal.Interfaces(v.interfaceName(path.Child("bridgeInterface"), c.DetectLocalMode, c.DetectLocal.BridgeInterface, longestInterface))
	case localPrefix: // an interface name has at least one more character
		if begin := v.interfaceName(path.Child("interfaceNamePrefix"), c.DetectLocalMode, c.DetectLocal.InterfaceNamePrefix, longestInterface-1); begin != "" {
			return portal.Interfaces(begin + "+")
		}
	}
	return ""
}

// longestInterface is the maximum length of an interface name (IFNAMSIZ is 16 with
// the terminating zero).
const longestInterface = 15

func (v *validator) interfaceName(path *field.Path, mode v1alpha1.LocalMode, value string, longest int) string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
	if value == "" || len(value) > longest || strings.Trim(value, letters) != "" {
		v.invalid(path, value, fmt.Sprintf("must be 1 to %[2]d characters (letters, digits and . _ -) with detectLocalMode %[1]s", mode, longest))
		return ""
	}
	return value
}

// cidr parses a network. Like kube-proxy, it accepts bits beyond the
// prefix.
func (v *validator) cidr(path *field.Path, value, allowed string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(value)
	if err != nil || p.Addr().Is4In6() {
		v.invalid(path, value, allowed)
		return netip.Prefix{}, false
	}
	return p.Masked(), true
}

// portRange accepts the same values as k8s.io/apimachinery's PortRange.Set. A 0 or 0-0
// means any port, as in the old userspace mode.
func (v *validator) portRange(path *field.Path, value string) string {
	r, err := utilnet.ParsePortRange(value)
	switch {
	case err == nil && (r.Size == 0 || r.Base == 0 && r.Size == 1):
		return ""
	case err != nil || r.Base < 1:
		v.invalid(path, value, "must be FIRST-LAST or FIRST+COUNT with ports from 1 to 65535, a single port, or 0-0 for any port")
		return ""
	}
	return fmt.Sprintf("%d-%d", r.Base, r.Base+r.Size-1)
}

func (v *validator) period(path *field.Path, value, least time.Duration) time.Duration {
	switch {
	case value < 0:
		v.invalid(path, value.String(), "must be greater than 0, or 0 for the default")
	case value > 0 && value < least:
		v.invalid(path, value.String(), fmt.Sprintf("must be at least %s, or 0 for the default", least))
	default:
		return value
	}
	return 0
}

// conntrack returns Settings.Conntrack.
func (v *validator) conntrack(path *field.Path, c *v1alpha1.KubeProxyConntrackConfiguration) *daemon.Conntrack {
	if *c == (v1alpha1.KubeProxyConntrackConfiguration{}) {
		return nil
	}
	byDefault := daemon.DefaultConntrack
	count := func(name string, value *int32, missing int) int {
		switch {
		case value == nil:
			return missing
		case *value < 0:
			v.invalid(path.Child(name), *value, "must not be negative")
		}
		return int(*value)
	}
	timeout := func(name string, value *metav1.Duration, missing time.Duration) time.Duration {
		if value == nil {
			return missing
		}
		return v.period(path.Child(name), value.Duration, time.Second)
	}
	return &daemon.Conntrack{
		MaxPerCore:     count("maxPerCore", c.MaxPerCore, byDefault.MaxPerCore),
		Min:            count("min", c.Min, byDefault.Min),
		TCPEstablished: timeout("tcpEstablishedTimeout", c.TCPEstablishedTimeout, byDefault.TCPEstablished),
		TCPCloseWait:   timeout("tcpCloseWaitTimeout", c.TCPCloseWaitTimeout, byDefault.TCPCloseWait),
		UDP:            timeout("udpTimeout", &c.UDPTimeout, 0),
		UDPStream:      timeout("udpStreamTimeout", &c.UDPStreamTimeout, 0),
		TCPBeLiberal:   c.TCPBeLiberal,
	}
}

// bindAddress sets NodeIP. As kube-proxy does, it selects IPv6 defaults for the health and
// metrics addresses if the address is IPv6.
func (v *validator) bindAddress(path *field.Path, value string, s *Settings) {
	if value == "" {
		return
	}
	addr, err := netip.ParseAddr(value)
	if err != nil {
		v.invalid(path, value, "must be an IP address")
		return
	}
	if addr = addr.Unmap(); !addr.IsUnspecified() {
		s.NodeIP = addr
	}
	if addr.Is4() {
		return // usher's own defaults are IPv4
	}
	s.Flags["healthz-address"] = cmp.Or(s.Flags["healthz-address"], netip.AddrPortFrom(netip.IPv6Unspecified(), healthzPort).String())
	s.Flags["admin-address"] = cmp.Or(s.Flags["admin-address"], netip.AddrPortFrom(netip.IPv6Loopback(), metricsPort).String())
}
