package house

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var update = flag.Bool("update", false, "write testdata/strings.txt, and lower the ceilings in testdata/words.txt")

// The places where words are counted.
const (
	inProse    = iota // README.md, CONTRIBUTING.md, SECURITY.md and docs
	inComments        // of Go files except tests
	inStrings         // of the same files
	inNames           // of the same files: each identifier once per folder
	places
)

// listed are the words that are counted. Identifiers are split into words: startTime is "start time".
var listed = []word{
	{"tell", re(`tell|tells|told|telling`), all},
	{"who", re(`who`), countWho},
	{"whom, whoever", re(`whom|whoever`), all},
	{"what", re(`what`), countWhat},
	{"somebody", re(`somebody|nobody|everybody|someone|everyone`), all},
	{"an usher", re(`an usher|ushers|the usher that was here`), all},
	{"of its own", re(`of (usher's|its) own`), all},
	{"beside", re(`besides?`), all},
	{"anew", re(`anew`), all},
	{"shall", re(`shall`), all},
	{"lately", re(`lately`), all},
	{"at the most", re(`at the most`), all},
	{"any more", re(`any more`), all},
	{"all the same", re(`all the same|in vain|for want of|to be had|so many|full picture|away longest`), all},
	{"passed over", re(`pass(ed|es)? over`), all},
	{"put back", re(`puts? back|mend(s|ed)?`), all},

	// Ordinary words, but poor names.
	{"Life", re(`life`), none},
	{"Tried", re(`tried`), none},
	{"Seen", re(`seen`), none},
	{"witness", re(`witness(es)?`), none},
	{"suspicious", re(`suspicio\w+|distrust\w*`), none},
	{"trial", re(`trial\w*|convict\w*|judge|acquit`), none},
	{"places", re(`places?`), none},
	{"entrance", re(`entrances?`), none},
	{"heir", re(`heirs?|bequest`), none},
	{"landing", re(`landings?\d*`), none},
	{"apart", re(`apart`), none},
	{"room", re(`room`), none},
	{"books", re(`books?`), none},
	{"truth", re(`truth|complaint|amounts|stock|whereabouts`), none},
	{"Story", re(`story`), none},
	{"tally", re(`tally`), none},
	{"Asked", re(`asked|answered|adopted`), none},
	{"Took", re(`took|began`), none},
	{"LeadsBack", re(`leads? back|unlead|lead`), none},
	{"Introduce", re(`introduce|await`), none},
	{"settle", re(`losers?|settle`), none},
	{"ebb", re(`ebb|crowd`), none},
	{"standing", re(`standing|knowing|absence|lack|wish|patience`), none},
}

// word is a line of the glossary.
type word struct {
	name    string
	pattern *regexp.Regexp                     // pattern for names
	count   func(w *word, text string) (n int) // number of matches in a text
}

func re(pattern string) *regexp.Regexp { return regexp.MustCompile(`(?i)\b(` + pattern + `)\b`) }

func all(w *word, text string) int { return len(w.pattern.FindAllString(text, -1)) }
func none(*word, string) int       { return 0 }

// named are the nouns that "who" may follow.
const named = `clients?|users?|operators?|administrators?|readers?|people|person|students?|teachers?|authors?|maintainers?|those|engineers?`

var (
	sentence = regexp.MustCompile(`[^.?!]+[.?!]*`)
	who      = regexp.MustCompile(`(?i)(?:(\S+) )?\bwho\b`)
	noun     = regexp.MustCompile(`(?i)^\W*(` + named + `),?$`)
	// A "what" without a noun: after a preposition, or at the beginning of a clause. In "show what changed" and "what
	// to do" it begins an indirect question, which is not counted.
	what = regexp.MustCompile(`(?i)((^|[,:;(–] *|\b(and|or|but|of|to|for|from|in|with|by|on|at|about|than|after|before|into|that|as|all|without)) *)\bwhat\b( to\b)?`)

	camel = regexp.MustCompile(`([a-z0-9])([A-Z])|_`)
)

// statements returns the sentences of text except questions, which may contain "who" and "what".
func statements(text string) []string {
	return slices.DeleteFunc(sentence.FindAllString(text, -1), func(s string) bool { return strings.HasSuffix(s, "?") })
}

func countWho(_ *word, text string) (n int) {
	for _, s := range statements(text) {
		for _, match := range who.FindAllStringSubmatch(s, -1) {
			if !noun.MatchString(match[1]) {
				n++
			}
		}
	}
	return n
}

func countWhat(_ *word, text string) (n int) {
	for _, s := range statements(text) {
		for _, match := range what.FindAllString(strings.TrimSpace(s), -1) {
			if !strings.HasSuffix(match, " to") {
				n++
			}
		}
	}
	return n
}

// code is the text of a folder's Go files, except tests.
type code struct {
	comments, names []string
	strings         []literal
}

// literal is a string as readers see it: added literals are joined, with … for each value between them.
type literal struct {
	text  string
	words bool // it has two words or more
	shown bool // it is a message, a title or a help text, even with one word
}

// texts returns the code by folder, except this folder's, which lists the words.
func texts() map[string]*code {
	GinkgoHelper()
	all := map[string]*code{}
	for _, file := range filesNamed(".go") {
		folder := path.Dir(file)
		if strings.HasSuffix(file, "_test.go") || folder == "test/house" {
			continue
		}
		source, err := fs.ReadFile(repository, file)
		Expect(err).NotTo(HaveOccurred())
		tree, err := parser.ParseFile(token.NewFileSet(), file, source, parser.ParseComments)
		Expect(err).NotTo(HaveOccurred())
		if all[folder] == nil {
			all[folder] = &code{}
		}
		all[folder].add(tree)
	}
	return all
}

func (c *code) add(tree *ast.File) {
	for _, group := range tree.Comments {
		c.comments = append(c.comments, oneLine(group.Text()))
	}
	shown := map[ast.Expr]bool{}
	var visit func(n ast.Node) bool
	visit = func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.Ident:
			c.names = append(c.names, n.Name)
		case *ast.Field:
			n.Tag = nil
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.SelectorExpr); ok && messages.MatchString(f.Sel.Name) {
				for _, arg := range n.Args {
					shown[arg] = true
				}
			}
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok && titles.MatchString(key.Name) {
				shown[n.Value] = true
			}
		case *ast.BinaryExpr, *ast.BasicLit:
			x := n.(ast.Expr)
			text, values, ok := join(x)
			if !ok {
				return true
			}
			text = oneLine(text)
			c.strings = append(c.strings, literal{text, twoWords.MatchString(text), shown[x] && letters.MatchString(text)})
			for _, value := range values {
				ast.Inspect(value, visit)
			}
			return false
		}
		return true
	}
	ast.Inspect(tree, visit)
}

var (
	// messages are functions whose strings are user-visible, and titles such fields, even if the string has one word.
	messages = regexp.MustCompile(`^((Trace|Debug|Info|Warn|Warning|Error|Fatal|Print|Event|New|Errorf)f?|WithField)$`)
	titles   = regexp.MustCompile(`^(Title|Use|Short|Long|Example)$`)

	twoWords = regexp.MustCompile(`\pL\pL.* .*\pL\pL`)
	letters  = regexp.MustCompile(`\pL\pL`)
)

// join returns the string of x, with added literals joined, and the values that are not literals; ok is false if there
// is no literal.
func join(x ast.Expr) (text string, values []ast.Expr, ok bool) {
	switch x := x.(type) {
	case *ast.BasicLit:
		if x.Kind == token.STRING {
			text, err := strconv.Unquote(x.Value)
			return text, nil, err == nil
		}
	case *ast.BinaryExpr:
		if x.Op == token.ADD {
			a, valuesA, okA := join(x.X)
			b, valuesB, okB := join(x.Y)
			return a + b, append(valuesA, valuesB...), okA || okB
		}
	}
	return "…", []ast.Expr{x}, false
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// prose returns the text of the documents, without code.
func prose() (all []string) {
	GinkgoHelper()
	for _, file := range filesNamed(".md") {
		switch {
		case file == "docs/walk.md": // it consists of names in the code
		case file == "README.md", file == "CONTRIBUTING.md", file == "SECURITY.md", strings.HasPrefix(file, "docs/"):
			text, err := fs.ReadFile(repository, file)
			Expect(err).NotTo(HaveOccurred())
			plain := codeSpan.ReplaceAllString(codeBlock.ReplaceAllString(string(text), ""), "`x`")
			plain = heading.ReplaceAllString(plain, "$1?") // "What survives" is a question
			for _, block := range regexp.MustCompile(`\n\s*\n|\||\n[-*] |\n\d+\. `).Split(plain, -1) {
				all = append(all, oneLine(block))
			}
		}
	}
	return all
}

// counted returns the counts of each listed word.
func counted() (counts [][places]int) {
	GinkgoHelper()
	documents, folders := prose(), texts()
	var names []string
	for _, c := range folders {
		slices.Sort(c.names)
		for _, name := range slices.Compact(c.names) {
			names = append(names, strings.ToLower(camel.ReplaceAllString(name, "$1 $2")))
		}
	}
	counts = make([][places]int, len(listed))
	for i := range listed {
		w := &listed[i]
		for _, name := range names {
			counts[i][inNames] += min(1, all(w, name))
		}
		for _, text := range documents {
			counts[i][inProse] += w.count(w, text)
		}
		for _, c := range folders {
			for _, text := range c.comments {
				counts[i][inComments] += w.count(w, text)
			}
			for _, s := range c.strings {
				if s.words {
					counts[i][inStrings] += w.count(w, s.text)
				}
			}
		}
	}
	return counts
}

const (
	ceilingsFile = "testdata/words.txt"
	tableHead    = "%-14s %6s %9s %8s %6s\n"
)

// table formats counts, one line for each word.
func table(counts [][places]int) string {
	var b strings.Builder
	fmt.Fprintf(&b, tableHead, "word", "prose", "comments", "strings", "names")
	for i, c := range counts {
		fmt.Fprintf(&b, "%-14s %6d %9d %8d %6d\n", listed[i].name, c[inProse], c[inComments], c[inStrings], c[inNames])
	}
	return b.String()
}

// ceilings parses a table.
func ceilings(text string) (counts [][places]int) {
	GinkgoHelper()
	line := regexp.MustCompile(`(?m)^(.{14}) +(\d+) +(\d+) +(\d+) +(\d+)$`)
	for i, match := range line.FindAllStringSubmatch(text, -1) {
		Expect(i).To(BeNumerically("<", len(listed)), text)
		Expect(strings.TrimSpace(match[1])).To(Equal(listed[i].name))
		var c [places]int
		for p := range c {
			c[p], _ = strconv.Atoi(match[2+p])
		}
		counts = append(counts, c)
	}
	Expect(counts).To(HaveLen(len(listed)), "a line for each word")
	return counts
}

var _ = Describe("the words of the style guide's glossary", func() {
	It("do not become more frequent", func() {
		// Ceilings only fall: -update lowers them to the counts. A ceiling far above its count must be lowered too, so
		// that no words can come back unnoticed. Raising one needs a reason in the commit message.
		text, err := os.ReadFile(ceilingsFile)
		if !os.IsNotExist(err) {
			Expect(err).NotTo(HaveOccurred())
		}
		now := counted()
		if testing.Verbose() {
			fmt.Print("\n" + table(now))
		}
		highest := slices.Clone(now)
		if len(text) > 0 {
			highest = ceilings(string(text))
		}
		if *update {
			for i, c := range now {
				for p, n := range c {
					highest[i][p] = min(n, highest[i][p])
				}
			}
			Expect(os.WriteFile(ceilingsFile, []byte(table(highest)), 0o644)).To(Succeed())
		}
		in := [places]string{"the documents", "comments", "strings", "names"}
		var faults []string
		for i, c := range now {
			for p, n := range c {
				switch ceiling := highest[i][p]; {
				case n > ceiling:
					faults = append(faults, fmt.Sprintf("%s: %d in %s, more than %d: write it another way", listed[i].name, n, in[p], ceiling))
				case 10*ceiling > 11*n+50:
					faults = append(faults, fmt.Sprintf("%s: only %d in %s: lower the ceiling, which is %d (go test ./test/house -update)", listed[i].name, n, in[p], ceiling))
				}
			}
		}
		Expect(faults).To(BeEmpty(), strings.Join(faults, "\n"))
	})

	DescribeTable("are counted",
		func(name, text string, n int) {
			i := slices.IndexFunc(listed, func(w word) bool { return w.name == name })
			Expect(listed[i].count(&listed[i], text)).To(Equal(n))
		},
		Entry(nil, "tell", "It was told, and tells. A teller is none.", 2),
		Entry(nil, "who", "Who asks gets it; the clients who ask do, and those who wait. Who pays?", 1),
		Entry(nil, "what", "What is there, of what came, shows what it is. What is it? What to do: x.", 2),
	)
})
