package strict

import (
	"strings"
	"sync/atomic"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

func TestStrict(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "config/strict")
}

// toJSON converts a file, and returns one line for each value and each error.
func toJSON(file string) string {
	var budget atomic.Int64
	budget.Store(1000)
	var out []string
	for _, d := range Split([]byte(file)) {
		values, errs := ToJSON(d, &budget)
		for _, v := range values {
			out = append(out, string(v))
		}
		for _, err := range errs {
			out = append(out, err.Error())
		}
	}
	return strings.Join(out, "\n")
}

var _ = Describe("a document", func() {
	DescribeTable("becomes JSON",
		func(file string, want ...string) { Expect(toJSON(file)).To(Equal(strings.Join(want, "\n"))) },
		Entry("from YAML", "a: [1, two]\n", `{"a":[1,"two"]}`),
		Entry("from JSON, unchanged, with tabs", "{\n\t\"a\": 1}", "{\n\t\"a\": 1}"),
		Entry("from several JSON objects after a separator", "---\n{\"a\": 1}\n{\"b\": 2}", `{"a": 1}`, `{"b": 2}`),
		Entry("from YAML with aliases", "a: &x [1]\nb: *x", `{"a":[1],"b":[1]}`),
	)

	It("is read as JSON after a byte order mark, too", func() {
		values, err := JSONValues([]byte("\xef\xbb\xbf{}"))
		Expect(err).To(BeNil())
		Expect(values).To(Equal([][]byte{[]byte("{}")}))
	})

	It("reports at most 100 duplicate fields, with the beginnings of their paths", func() {
		lines := strings.Split(toJSON(strings.Repeat(strings.Repeat("k", 300)+": 1\n", 1000)), "\n")
		Expect(lines).To(HaveLen(1 + maxDuplicates))
		Expect(lines[1]).To(Equal(`line 2: duplicate field "` + strings.Repeat("k", maxPath) + `…"; first set in line 1`))
	})

	DescribeTable("with an error reports its line in the file",
		func(file string, want ...string) { Expect(toJSON(file)).To(Equal(strings.Join(want, "\n"))) },
		Entry("and the next document is read", "a: 1\n---\nb: c: d\n---\nc: 3", `{"a":1}`, "line 3: mapping values are not allowed in this context", `{"c":3}`),
		Entry("and the duplicate field, and is still decoded", "x: 0\n---\na:\n- b: 1\n  c: 2\n  b: 3\na: 4",
			`{"x":0}`, `{"a":4}`, `line 6: duplicate field "a[0].b"; first set in line 4`, `line 7: duplicate field "a"; first set in line 3`),
		Entry("also for two spellings of one key", "1: a\n0x1: b", `{"1":"b"}`, "line 2: key 1 already set in map"),
		Entry("except for aliases that expand too much", "a: &x "+strings.Repeat("long", 100)+"\nb: [*x, *x]", "too large after expanding aliases (*name)"),
	)
})

var _ = Describe("an object", func() {
	DescribeTable("reports its errors",
		func(value string, want ...string) {
			var into struct {
				Port  int32  `json:"port"`
				Name  string `json:"name"`
				Inner []struct {
					On bool `json:"on"`
				} `json:"inner"`
				Meta struct {
					Annotations map[string]string `json:"annotations"`
				} `json:"meta"`
			}
			var said []string
			errs, decoded := Decode([]byte(value), &into)
			for _, err := range errs {
				said = append(said, err.Error())
			}
			Expect(decoded).To(Equal(!strings.Contains(strings.Join(said, ""), "must be")), "the object is decoded unless a value is invalid")
			Expect(said).To(HaveExactElements(want))
		},
		Entry("none", `{"port": 80, "inner": [{"on": true}]}`),
		Entry("all unknown and duplicate fields", `{"Port": 80, "inner": [{"of": 1}], "name": "a", "name": "b"}`,
			`unknown field "Port"`, `unknown field "inner[0].of"`, `duplicate field "name"`),
		Entry("a wrong type", `{"port": "80"}`, "port: must be a whole number of 32 bits, not a string"),
		Entry("a number that is too large", `{"port": 99999999999}`, "port: must be a whole number of 32 bits, not 99999999999"),
		Entry("a wrong type in a nested object", `{"inner": [{"on": {}}]}`, "inner.on: must be true or false, not an object"),
		Entry("a string without quotes", `{"name": 1}`, "name: must be a string, not a number; put it in quotes"),
		Entry("a string without quotes in a map", `{"meta": {"annotations": {"a": "1", "b": null, "usher.io/c": 5, "d": true}}}`,
			`meta.annotations["usher.io/c"]: must be a string, not a number; put it in quotes`),
	)
})
