package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/trace"
)

// badQuery returns the error for an invalid parameter.
func badQuery(name, value, allowed string) error {
	return &api.Error{Code: http.StatusBadRequest, Message: fmt.Sprintf("%s: invalid value %q: must be %s", name, value, allowed)}
}

// checkQuery compares the parameters of a request with those of the route. It leaves integers to number.
func checkQuery(route api.Route, values url.Values) error {
	for name, list := range values {
		i := slices.IndexFunc(route.Params, func(p api.Param) bool { return p.In == "query" && p.Name == name })
		if i < 0 {
			return &api.Error{Code: http.StatusBadRequest, Message: fmt.Sprintf("unknown parameter %q: must be one of %s", name, queryNames(route))}
		}
		p := route.Params[i]
		for _, value := range list {
			if len(p.Enum) > 0 && !slices.Contains(p.Enum, value) {
				return badQuery(name, value, "one of "+strings.Join(p.Enum, ", "))
			}
			if _, err := strconv.ParseBool(value); err != nil && p.Type == "boolean" {
				return badQuery(name, value, "true or false")
			}
		}
	}
	for _, p := range route.Params {
		if p.In == "query" && p.Required && values.Get(p.Name) == "" {
			return &api.Error{Code: http.StatusBadRequest, Message: fmt.Sprintf("missing parameter %s: %s", p.Name, p.Text)}
		}
	}
	return nil
}

func queryNames(route api.Route) string {
	var names []string
	for _, p := range route.Params {
		if p.In == "query" {
			names = append(names, p.Name)
		}
	}
	if names == nil {
		return "none"
	}
	return strings.Join(names, ", ")
}

// flag returns the value of a validated boolean parameter; if it is absent, the argument otherwise.
func flag(values url.Values, name string, otherwise bool) bool {
	if v, err := strconv.ParseBool(values.Get(name)); err == nil {
		return v
	}
	return otherwise
}

// number returns the value of an integer parameter, from least to most; if it is absent, the argument otherwise.
func number(values url.Values, name string, least, most, otherwise int64) (int64, error) {
	if !values.Has(name) {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(values.Get(name), 10, 64)
	if err != nil || n < least || n > most {
		return 0, badQuery(name, values.Get(name), fmt.Sprintf("a number from %d to %d", least, most))
	}
	return n, nil
}

// interval returns the value of a duration parameter; 0 if it is absent.
func interval(values url.Values, name string) (time.Duration, error) {
	if !values.Has(name) {
		return 0, nil
	}
	d, err := time.ParseDuration(values.Get(name))
	if err != nil || d <= 0 {
		return 0, badQuery(name, values.Get(name), "a time above 0, such as 200ms or 10m")
	}
	return d, nil
}

// oneOfEach returns the comma-separated words of value, each of which must be in allowed.
func oneOfEach(name, value string, allowed []string) (words []string, err error) {
	if value == "" {
		return nil, nil
	}
	for word := range strings.SplitSeq(value, ",") {
		if !slices.Contains(allowed, word) {
			return nil, badQuery(name, word, "one of "+strings.Join(allowed, ", "))
		}
		words = append(words, word)
	}
	return words, nil
}

// limit returns the value of the parameter limit.
func limit(values url.Values) (int, error) {
	n, err := number(values, "limit", 1, api.MaxLimit, api.DefaultLimit)
	return int(n), err
}

// serviceName parses "namespace/name".
func serviceName(s string) (types.NamespacedName, error) {
	namespace, name, ok := strings.Cut(s, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return types.NamespacedName{}, badQuery("service", s, "namespace/name")
	}
	return types.NamespacedName{Namespace: namespace, Name: name}, nil
}

// selection selects connections, events and affinity entries. Zero fields match all.
type selection struct {
	size     int // items on a page, if there are pages
	service  types.NamespacedName
	client   netip.Prefix
	port     uint16 // of the client
	endpoint netip.AddrPort
	pod      string // of the endpoint
	protocol config.Protocol
}

func newSelection(values url.Values) (s selection, err error) {
	if s.size, err = limit(values); err != nil {
		return s, err
	}
	if v := values.Get("service"); v != "" {
		if s.service, err = serviceName(v); err != nil {
			return s, err
		}
	}
	if v := values.Get("client"); v != "" {
		if s.client, s.port, err = parseClient(v); err != nil {
			return s, err
		}
	}
	if v := values.Get("endpoint"); v != "" {
		if s.endpoint, s.pod, err = parseEndpoint(v); err != nil {
			return s, err
		}
	}
	s.protocol = config.Protocol(values.Get("protocol"))
	return s, nil
}

func parseClient(v string) (netip.Prefix, uint16, error) {
	if at, err := netip.ParseAddrPort(v); err == nil {
		return netip.PrefixFrom(at.Addr().Unmap(), at.Addr().Unmap().BitLen()), at.Port(), nil
	}
	if addr, err := netip.ParseAddr(v); err == nil {
		return netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen()), 0, nil
	}
	if network, err := netip.ParsePrefix(v); err == nil {
		return network.Masked(), 0, nil
	}
	return netip.Prefix{}, 0, badQuery("client", v, "an address, an address and port, or a network such as 10.1.0.0/16")
}

func parseEndpoint(v string) (netip.AddrPort, string, error) {
	if at, err := netip.ParseAddrPort(v); err == nil {
		return at, "", nil
	}
	if addr, err := netip.ParseAddr(v); err == nil {
		return netip.AddrPortFrom(addr, 0), "", nil
	}
	if _, err := serviceName(v); err == nil {
		return netip.AddrPort{}, v, nil
	}
	return netip.AddrPort{}, "", badQuery("endpoint", v, "an address, an address and port, or a Pod as namespace/name")
}

// subject reports whether s is selected, disregarding endpoints.
func (s *selection) subject(about *trace.Subject) bool {
	return s.servicePort(about.Port) && s.hasClient(about.Client.Addr()) &&
		(s.port == 0 || s.port == about.Client.Port()) &&
		(s.protocol == "" || s.protocol == about.Protocol)
}

func (s *selection) servicePort(id config.PortID) bool {
	return s.service == types.NamespacedName{} || id.Namespace == s.service.Namespace && id.Service == s.service.Name
}

func (s *selection) hasClient(client netip.Addr) bool {
	return !s.client.IsValid() || s.client.Contains(client)
}

// anyEndpoint reports whether any endpoint matches.
func (s *selection) anyEndpoint() bool { return !s.endpoint.Addr().IsValid() && s.pod == "" }

func (s *selection) hasEndpoint(at netip.AddrPort, pod string) bool {
	switch {
	case s.pod != "":
		return s.pod == pod
	case s.endpoint.Addr().IsValid():
		return s.endpoint.Addr() == at.Addr() && (s.endpoint.Port() == 0 || s.endpoint.Port() == at.Port())
	}
	return true
}

// WriteError answers with an api.Error.
func WriteError(w http.ResponseWriter, code int, message string) {
	WriteJSON(w, code, api.Error{Code: code, Message: message})
}

// WriteJSON answers with body as JSON, as all answers of the API. It calls w.Write once.
func WriteJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client may have disconnected
}
