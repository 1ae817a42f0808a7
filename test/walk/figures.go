package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/usherproxy/usher/test/walk/recorder"
)

// polling are the functions with which an event loop waits for its sockets and ends a round. The number of rounds for an
// event is random: two packets may arrive together or not. So these calls are left out, but not the calls that they
// make.
var polling = map[string][]string{
	"proxy/forward/poll_linux.go":    {"Poller.poll", "Poller.take", "Poller.wait", "Poller.block", "Poller.yield", "Poller.takeTurns", "Poller.Crowded", "Poller.runTasks", "Poller.signal"},
	"proxy/datagram/server_linux.go": {"loop.endRound", "loop.flush"},
}

// call is a function call with the calls that it made.
type call struct {
	file, name string
	calls      []*call
}

// recording holds the calls of one event.
type recording struct {
	roots []*call // by goroutine, in start order
	figures
}

// read builds a recording from the recorder's events.
func read(events []recorder.Event) recording {
	stacks := map[string][]*call{} // by goroutine; the first entry is no call, but holds the calls
	var goroutines []*call
	for _, e := range events {
		file, name, _ := strings.Cut(e.Function, " ")
		if slices.Contains(polling[file], name) {
			continue
		}
		stack := stacks[e.Goroutine]
		if e.Return {
			if len(stack) > 1 { // otherwise it was called before the event
				stacks[e.Goroutine] = stack[:len(stack)-1]
			}
			continue
		}
		if stack == nil {
			stack = []*call{{}}
			goroutines = append(goroutines, stack[0])
		}
		c := &call{file: file, name: name}
		top := stack[len(stack)-1]
		top.calls = append(top.calls, c)
		stacks[e.Goroutine] = append(stack, c)
	}
	r := recording{figures: figures{inRequests: none}}
	functions := map[string]bool{}
	for _, g := range goroutines {
		file := ""
		each(g.calls, func(c *call) {
			r.figures[inCalls]++
			if c.file != file {
				r.figures[inStays]++
			}
			file = c.file
			functions[c.file+" "+c.name] = true
		})
		r.roots = append(r.roots, g.calls...)
	}
	r.count(functions)
	return r
}

// count counts functions, such as "proxy/proxy.go Proxy.Apply", and their files and packages.
func (f *figures) count(functions map[string]bool) {
	files, packages := map[string]bool{}, map[string]bool{}
	for function := range functions {
		file, _, _ := strings.Cut(function, " ")
		files[file], packages[path.Dir(file)] = true, true
	}
	f[inFiles], f[inPackages], f[inFunctions] = len(files), len(packages), len(functions)
}

// each calls f for all calls in order.
func each(calls []*call, f func(*call)) {
	for _, c := range calls {
		f(c)
		each(c.calls, f)
	}
}

// dataEvents returns the recordings of a connection, a datagram and a change: for each, the one with the most frequent
// figures. Other recordings contain occasional work, or a timer of the previous event.
func (m *meter) dataEvents() (map[string]recording, error) {
	dir, err := os.MkdirTemp(m.dir, "data-")
	if err != nil {
		return nil, err
	}
	if _, err := m.run(dir, m.program, "data", dir); err != nil {
		return nil, err
	}
	found := map[string]recording{}
	for _, event := range []string{"tcp", "udp", "change"} {
		names, err := filepath.Glob(filepath.Join(dir, event+"-*.json"))
		if err != nil {
			return nil, err
		}
		count := map[figures]int{}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				return nil, err
			}
			var events []recorder.Event
			if err := json.Unmarshal(text, &events); err != nil {
				return nil, err
			}
			r := read(events)
			count[r.figures]++
			if most := found[event].figures; count[r.figures] > count[most] || count[r.figures] == count[most] && r.figures[inCalls] < most[inCalls] {
				found[event] = r
			}
		}
	}
	return found, nil
}

// inNamespace runs a command in a dedicated network namespace.
const inNamespace = `ip link set lo up && exec "$@"`

// controlEvents returns the figures of an added endpoint and an added Service for a source, "api" or "file".
func (m *meter) controlEvents(source string) (map[string]figures, error) {
	dir, err := os.MkdirTemp(m.dir, source+"-")
	if err != nil {
		return nil, err
	}
	args := []string{"-n", "sh", "-c", inNamespace, "sh"}
	traced := filepath.Join(dir, "strace")
	_, err = exec.LookPath("strace")
	tracing := err == nil
	if tracing {
		args = append(args, "strace", "-f", "-qq", "-o", traced, "-e", "trace=sendto,sendmsg,newfstatat")
	}
	if _, err := m.run(dir, "unshare", append(args, m.program, source, dir)...); err != nil {
		return nil, err
	}
	idle, err := m.covered(filepath.Join(dir, "idle"))
	if err != nil {
		return nil, err
	}
	found := map[string]figures{}
	for _, event := range []string{"endpoint", "service"} {
		ran, err := m.covered(filepath.Join(dir, event))
		if err != nil {
			return nil, err
		}
		maps.DeleteFunc(ran, func(function string, _ bool) bool { return idle[function] })
		f := figures{inCalls: none, inStays: none, inRequests: none}
		f.count(ran)
		if tracing {
			text, err := os.ReadFile(traced)
			if err != nil {
				return nil, err
			}
			f[inRequests] = requests(text, event)
		}
		found[source+"-"+event] = f
	}
	return found, nil
}

// requests counts the netlink messages sent during an event.
func requests(trace []byte, event string) int {
	_, after, _ := bytes.Cut(trace, []byte(`/walk-mark/`+event))
	during, _, _ := bytes.Cut(after, []byte(`/walk-mark/end`))
	return bytes.Count(during, []byte("nlmsg_len="))
}

// block matches a line of a coverage profile: position, number of statements, number of runs.
var block = regexp.MustCompile(`(?m)^` + module + `(\S+):(\d+)\.(\d+),\S+ \d+ [1-9]\d*$`)

// covered returns the functions in which a statement ran, such as "proxy/proxy.go Proxy.Apply".
func (m *meter) covered(dir string) (map[string]bool, error) {
	profile := filepath.Join(dir, "profile")
	if _, err := m.run(dir, "go", "tool", "covdata", "textfmt", "-i="+dir, "-o="+profile); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(profile)
	if err != nil {
		return nil, err
	}
	ran := map[string]bool{}
	for _, match := range block.FindAllStringSubmatch(string(text), -1) {
		line, _ := strconv.Atoi(match[2]) // the pattern allows only digits
		column, _ := strconv.Atoi(match[3])
		if name, ok := m.functionAt(match[1], line, column); ok {
			ran[match[1]+" "+name] = true
		}
	}
	return ran, nil
}
