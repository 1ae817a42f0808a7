package cluster

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/proxy/admin/api"
)

// drawn parses a matrix from a drawing: one row per endpoint, in which x is bad, . good, and _ unknown.
func drawn(rows ...string) matrix {
	results := map[byte]api.ClusterResult{'x': api.ResultBad, '.': api.ResultGood, '_': api.ResultUnknown}
	return matrix{len(rows), len(rows[0]), func(r, c int) api.ClusterResult { return results[rows[r][c]] }}
}

// TestVerdicts checks the verdict for each matrix. Pods are web-0 and so on, nodes a, b, c …
func TestVerdicts(t *testing.T) {
	for _, is := range []struct {
		what string
		rows []string
		want []string
	}{
		{"nothing fails", []string{"...", "..."}, nil},
		{"nothing is known", []string{"___", "___"}, nil},
		{"a Pod is dead", []string{"...", "xxx", "..."}, []string{"pod web-1: all 3"}},
		{"the only Pod is dead", []string{"xx"}, []string{"pod web-0: all 2"}},
		{"a Pod is dead, and most nodes had no connection to it", []string{"x_x_", "...."}, []string{"pod web-0: all 2"}},
		{"a Pod fails on most nodes", []string{"xx.", "..."}, []string{"pod web-0: 2 of 3"}},
		{"a node reaches no Pod", []string{".x.", ".x.", ".x."}, []string{"node b: all 3"}},
		{"a node reaches only its own Pod", []string{"...", ".x.", ".x."}, []string{"node b: 2 of 3"}},
		{"two of three nodes reach no Pod: the nodes are the cause", []string{"xx.", "xx.", "xx."}, []string{"node a: all 3", "node b: all 3"}},
		{"two of three Pods are dead: the Pods are the cause", []string{"xxx", "xxx", "..."}, []string{"pod web-0: all 3", "pod web-1: all 3"}},
		{"a Pod and a node fail", []string{"xxx", ".x.", ".x."}, []string{"pod web-0: all 3", "node b: all 3"}},
		{"a Pod and perhaps a node fail, of two each", []string{"xx", ".x"}, []string{"pod web-0: all 2", "path b web-1"}},
		{"everything fails", []string{"xx", "xx"}, []string{"all"}},
		{"every known result is a failure", []string{"x_", "_x"}, []string{"all"}},
		{"one path fails", []string{".x.", "..."}, []string{"path b web-0"}},
		{"one path to the only Pod fails", []string{".x."}, []string{"path b web-0"}},
		{"only one node has a result for the Pod", []string{"_x_", "..."}, []string{"unclear b web-0"}},
		{"only one node has results", []string{"x", "x", "x"}, []string{"unclear a web-0", "unclear a web-1", "unclear a web-2"}},
		{"one failure and no other result", []string{"x"}, []string{"unclear a web-0"}},
		{"one path fails and a Pod is dead", []string{"xxx", ".x.", "..."}, []string{"pod web-0: all 3", "path b web-1"}},
	} {
		t.Run(is.what, func(t *testing.T) {
			g := NewWithT(t)
			v := judge(drawn(is.rows...))
			var answerOf []string
			if v.all {
				answerOf = append(answerOf, "all")
			}
			for _, l := range v.order {
				if l.column {
					answerOf = append(answerOf, fmt.Sprintf("node %c: %s", 'a'+l.index, v.columns[l.index].part()))
				} else {
					answerOf = append(answerOf, fmt.Sprintf("pod web-%d: %s", l.index, v.rows[l.index].part()))
				}
			}
			for what, cells := range map[string][][2]int{"path": v.pairs, "unclear": v.unclear} {
				for _, at := range cells {
					answerOf = append(answerOf, fmt.Sprintf("%s %c web-%d", what, 'a'+at[1], at[0]))
				}
			}
			g.Expect(answerOf).To(ConsistOf(is.want))
		})
	}
}

func TestVerdictTexts(t *testing.T) {
	for _, is := range []struct {
		rows []string
		want string
	}{
		{[]string{"xxx", "..."}, "The cause is the Pod web-0 (10.1.0.0:80): connections from all 3 nodes to it fail, and other endpoints respond."},
		{[]string{"xx"}, "The cause is the Pod web-0 (10.1.0.0:80): connections from all 2 nodes to it fail."},
		{[]string{".x", ".x", ".."}, "The cause is node b: 2 of 3 endpoints fail from there, and connections from other nodes succeed."},
		{[]string{".x.", "..."}, "The cause is the path from node b to the Pod web-0 (10.1.0.0:80): 2 other nodes reach it, and the node reaches other endpoints."},
		{[]string{".x"}, "The cause is node b or its path to the Pod web-0 (10.1.0.0:80): another node reaches it. Compare other Services on that node."},
		{[]string{"_x", ".."}, "Connections from node b to the Pod web-0 (10.1.0.0:80) fail. There were too few other connections to determine which of the two is the cause."},
		{[]string{"xx", "xx"}, "Every endpoint fails on every node that had connections. The cause is shared by all, such as the application, a NetworkPolicy or the network."},
	} {
		g := NewWithT(t)
		m := drawn(is.rows...)
		var endpoints []api.ClusterEndpoint
		for i := range m.rows {
			endpoints = append(endpoints, api.ClusterEndpoint{Address: fmt.Sprintf("10.1.0.%d:80", i), Pod: fmt.Sprintf("shop/web-%d", i)})
		}
		list, omitted := findings(judge(m), endpoints, []api.ClusterColumn{{Name: "a"}, {Name: "b"}, {Name: "c"}})
		g.Expect(omitted).To(BeZero())
		g.Expect(list).To(HaveLen(1))
		g.Expect(list[0].Text).To(Equal(is.want))
	}
	g := NewWithT(t)
	many := make([]string, 40)
	for i := range many {
		many[i] = "xx"
	}
	many = append(many, "..")
	list, omitted := findings(judge(drawn(many...)), make([]api.ClusterEndpoint, 41), make([]api.ClusterColumn, 2))
	g.Expect(list).To(HaveLen(maxFindings))
	g.Expect(omitted).To(Equal(30))
}

func TestResults(t *testing.T) {
	g := NewWithT(t)
	for _, is := range []struct {
		state         api.EndpointState
		tried, failed int64
		want          api.ClusterResult
	}{
		{api.EndpointReady, 0, 0, api.ResultUnknown},
		{api.EndpointReady, 1, 0, api.ResultGood},
		{api.EndpointReady, 9, 1, api.ResultUnknown}, // too few for a verdict
		{api.EndpointReady, 10, 1, api.ResultBad},
		{api.EndpointReady, 11, 1, api.ResultGood}, // the Pod may have restarted
		{api.EndpointQuarantined, 1, 1, api.ResultBad},
		{api.EndpointQuarantined, 0, 0, api.ResultBad}, // probes
		{api.EndpointOutlier, 100, 4, api.ResultBad},
		{api.EndpointNotReady, 0, 0, api.ResultUnknown},
		{api.EndpointTerminating, 40, 0, api.ResultGood},
	} {
		g.Expect(resultOf(is.state, is.tried, is.failed)).To(Equal(is.want), "%s, %d of %d", is.state, is.failed, is.tried)
	}
}

func TestManyCells(t *testing.T) { // 50 nodes × 5,000 endpoints, 10% of them dead
	g := NewWithT(t)
	row, deadRow := strings.Repeat(".", 49)+"x", strings.Repeat("x", 50)
	rows := make([]string, 5000)
	for i := range rows {
		rows[i] = row
		if i%10 == 0 {
			rows[i] = deadRow
		}
	}
	v := judge(drawn(rows...))
	g.Expect(v.order).To(HaveLen(501))
	g.Expect(v.columns[49].fault).To(BeTrue())
	g.Expect(v.pairs).To(BeEmpty())
	g.Expect(v.unclear).To(BeEmpty())
}
