// Package environ returns the environment variables by which a kubelet announces Services to a Pod, so that programs
// find them without a lookup.
//
// The variables depend only on the model: each Service with a cluster IP has some. Write writes them for a shell or a
// program.
package environ

import (
	"cmp"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
)

// Variable is an environment variable.
type Variable struct{ Name, Value string }

// String returns "NAME=value", as os/exec requires.
func (v Variable) String() string { return v.Name + "=" + v.Value }

// kubernetes is the API server's Service. Every Pod gets its variables, in any namespace.
var kubernetes = types.NamespacedName{Namespace: "default", Name: "kubernetes"}

// OfPod returns the variables of a Pod in that namespace, sorted by Service. They are those of the namespace's Services
// and of the API server's Service. A Service in the namespace with the latter's name replaces it.
func OfPod(services []config.Service, namespace string) []Variable {
	return of(choose(services, func(name types.NamespacedName) int {
		switch {
		case name.Namespace == namespace:
			return 2
		case name == kubernetes:
			return 1
		}
		return 0
	}))
}

// OfAll returns the variables of all Services. Names of variables contain no namespace. Of Services with the same name,
// the one in namespace is used, otherwise the first in the order of their namespaces.
func OfAll(services []config.Service, namespace string) []Variable {
	return of(choose(services, func(name types.NamespacedName) int {
		if name.Namespace == namespace {
			return 2
		}
		return 1
	}))
}

// Over returns an environment, in the form of os.Environ, with variables added; they replace those of the same name.
func Over(environment []string, variables []Variable) []string {
	names := make(map[string]bool, len(variables))
	for _, v := range variables {
		names[v.Name] = true
	}
	var out []string
	for _, line := range environment {
		if name, _, _ := strings.Cut(line, "="); !names[name] {
			out = append(out, line)
		}
	}
	for _, v := range variables {
		out = append(out, v.String())
	}
	return out
}

// Of returns the variables of one Service, in the order of a kubelet; none if it has no cluster IP.
func Of(s config.Service) []Variable {
	if !hasVariables(s) {
		return nil
	}
	prefix := name(s.Name.Name)
	host := s.Discovery.ClusterIPs[0].String()
	ports := s.Discovery.Ports

	out := []Variable{
		{prefix + "_SERVICE_HOST", host},
		{prefix + "_SERVICE_PORT", number(ports[0])},
	}
	for _, p := range ports {
		if p.Name != "" {
			out = append(out, Variable{prefix + "_SERVICE_PORT_" + name(p.Name), number(p)})
		}
	}
	out = append(out, Variable{prefix + "_PORT", url(host, ports[0])})
	for _, p := range ports {
		port := prefix + "_PORT_" + number(p) + "_" + string(p.Protocol)
		out = append(out,
			Variable{port, url(host, p)},
			Variable{port + "_PROTO", strings.ToLower(string(p.Protocol))},
			Variable{port + "_PORT", number(p)},
			Variable{port + "_ADDR", host},
		)
	}
	return out
}

// hasVariables reports whether a kubelet sets variables for s.
func hasVariables(s config.Service) bool {
	return s.Discovery != nil && len(s.Discovery.ClusterIPs) > 0 && len(s.Discovery.Ports) > 0
}

// of returns the variables of all services, in order.
func of(services []config.Service) []Variable {
	var out []Variable
	for _, s := range services {
		out = append(out, Of(s)...)
	}
	return out
}

// choose returns one Service of each name, sorted by name: the one with the highest rank, and of equal ranks the first
// by namespace. It omits those of rank 0.
func choose(services []config.Service, rank func(types.NamespacedName) int) []config.Service {
	best := map[string]config.Service{}
	for _, s := range services {
		if !hasVariables(s) || rank(s.Name) == 0 {
			continue
		}
		other, twice := best[s.Name.Name]
		order := cmp.Or(cmp.Compare(rank(other.Name), rank(s.Name)), cmp.Compare(s.Name.Namespace, other.Name.Namespace))
		if !twice || order < 0 {
			best[s.Name.Name] = s
		}
	}
	return slices.SortedFunc(maps.Values(best), func(a, b config.Service) int { return cmp.Compare(a.Name.Name, b.Name.Name) })
}

// name returns the form of a Service's or a port's name that occurs in names of variables.
func name(s string) string { return strings.ToUpper(strings.ReplaceAll(s, "-", "_")) }

func number(p config.DiscoveryPort) string { return strconv.Itoa(int(p.Number)) }

// url returns, for example, "tcp://10.96.0.10:80".
func url(host string, p config.DiscoveryPort) string {
	return strings.ToLower(string(p.Protocol)) + "://" + net.JoinHostPort(host, number(p))
}
