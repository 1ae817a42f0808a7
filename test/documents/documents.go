// Package documents reads the commands in the documentation, for the specs of the programs.
package documents

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

var (
	spans  = regexp.MustCompile("`([^`\n]+)`")
	before = regexp.MustCompile(`^(?:\$ |\s|sudo |[A-Z_]+=\S* |bin/|while |do |\()*`)
	after  = regexp.MustCompile(`\s#|[|>;&)<]|\$\(`)
	quotes = regexp.MustCompile(`'[^']*'|"[^"]*"`)
	words  = regexp.MustCompile(`^[a-z-]+$`)
)

// Commands returns the arguments of each command of a program in README.md, CONTRIBUTING.md and docs below root, by the
// line as it stands there. Command lines with an ellipsis or an alternative are left out.
func Commands(root, program string) (map[string][]string, error) {
	commands := map[string][]string{}
	add := func(line string) {
		rest, ok := strings.CutPrefix(before.ReplaceAllString(line, ""), program+" ")
		if !ok {
			return
		}
		rest = quotes.ReplaceAllString(rest, "QUOTED")
		if at := after.FindStringIndex(rest); at != nil {
			rest = rest[:at[0]]
		}
		if args := strings.Fields(rest); len(args) > 0 && words.MatchString(args[0]) && !strings.ContainsAny(rest, "…[") {
			commands[strings.TrimSpace(line)] = args
		}
	}
	read := func(file string) error {
		text, err := os.ReadFile(file)
		blocks, others := split(string(text))
		for _, block := range blocks {
			prompts := slices.ContainsFunc(block, hasPrompt)
			for _, line := range block {
				if line = strings.TrimSpace(line); !prompts || hasPrompt(line) { // otherwise it is output
					add(line)
				}
			}
		}
		for _, line := range others {
			for _, span := range spans.FindAllStringSubmatch(line, -1) {
				add(span[1])
			}
		}
		return err
	}
	for _, file := range []string{"README.md", "CONTRIBUTING.md"} {
		if err := read(filepath.Join(root, file)); err != nil {
			return nil, err
		}
	}
	return commands, filepath.WalkDir(filepath.Join(root, "docs"), func(file string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(file) != ".md" {
			return err
		}
		return read(file)
	})
}

// split returns the lines of each block of code, and all other lines. Lines that end with a backslash are joined.
func split(text string) (blocks [][]string, others []string) {
	inside := false
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			if inside = !inside; inside {
				blocks = append(blocks, nil)
			}
		case inside:
			blocks[len(blocks)-1] = append(blocks[len(blocks)-1], line)
		default:
			others = append(others, line)
		}
	}
	return blocks, others
}

func hasPrompt(line string) bool { return strings.HasPrefix(strings.TrimSpace(line), "$ ") }

// A Page is a page whose commands a spec runs.
type Page struct {
	Name   string
	blocks [][]string
	unused map[string]bool // the commands in its blocks
}

// ReadPage reads a page of docs below root.
func ReadPage(root, name string) (*Page, error) {
	text, err := os.ReadFile(filepath.Join(root, "docs", name))
	p := &Page{Name: name, unused: map[string]bool{}}
	p.blocks, _ = split(string(text))
	for _, line := range slices.Concat(p.blocks...) {
		if line = strings.TrimSpace(line); program.MatchString(line) {
			p.unused[withoutComment(line)] = true
		}
	}
	return p, err
}

// Block returns the lines of a block of code from the one that begins with first, each with its line break.
func (p *Page) Block(first string) (string, error) {
	for _, block := range p.blocks {
		if i := slices.IndexFunc(block, func(line string) bool { return strings.HasPrefix(line, first) }); i >= 0 {
			return strings.Join(block[i:], "\n") + "\n", nil
		}
	}
	return "", fmt.Errorf("docs/%s has no block with a line that begins with %q", p.Name, first)
}

// program matches the lines of blocks that are commands.
var program = regexp.MustCompile(`^(\$ |sudo |bin/|for p in |(usher|kubectl|curl|dig|jq|echo|eval|exit)( |$))`)

func withoutComment(line string) string {
	command, _, _ := strings.Cut(strings.TrimPrefix(line, "$ "), " #")
	return strings.Join(strings.Fields(command), " ")
}

// Use returns an error if the page does not contain the command, which is on one line and without its comment.
func (p *Page) Use(command string) error {
	if _, ok := p.unused[command]; !ok {
		return fmt.Errorf("docs/%s does not contain the command %q", p.Name, command)
	}
	p.unused[command] = false
	return nil
}

// Unused returns the commands that were not used.
func (p *Page) Unused() (commands []string) {
	for command, unused := range p.unused {
		if unused {
			commands = append(commands, command)
		}
	}
	return commands
}

// Known returns an error if root has no such command, or the command no such flag. Values may be placeholders.
func Known(root *cobra.Command, args []string) error {
	cmd, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(rest); err != nil && strings.Contains(err.Error(), "unknown") {
		return err
	}
	if names := cmd.Flags().Args(); cmd.HasSubCommands() && len(names) > 0 {
		return fmt.Errorf("unknown command %q", names[0])
	}
	return nil
}
