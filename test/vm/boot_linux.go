package vm

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// program is the kernel.
const program = "linux.uml"

// bootTimeout is for a whole kernel: boot, checks, halt.
const bootTimeout = 8 * time.Minute

// What Boot tells the kernel's first process, through its environment.
const (
	kernelVariable = "usher_kernel"
	usherVariable  = "usher_binary"
)

// Verdict is what became of a check.
type Verdict struct {
	Name    string
	Passed  bool
	Took    time.Duration
	Message string // why it failed
	Log     string // of a check that failed
	Notes   []string
}

// verdictMark begins a line with a verdict on the console.
const verdictMark = "VERDICT "

// Boot boots a kernel in which binary, the test binary of this package, is all
// that runs, and returns the verdicts by the checks' names, and the console. The
// kernel sees this machine's files and cannot change them.
func Boot(kernel, binary, usher string) (map[string]Verdict, string) {
	ctx, cancel := context.WithTimeout(context.Background(), bootTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program,
		"mem=1G", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "quiet",
		"con=null", "con0=null,fd:1", "init="+binary,
		kernelVariable+"="+strings.ReplaceAll(kernel, " ", "_"), usherVariable+"="+usher)
	var console bytes.Buffer
	cmd.Stdout, cmd.Stderr = &console, &console
	cmd.WaitDelay = time.Second // for processes of the kernel's that outlive it
	if err := cmd.Run(); err != nil {
		fmt.Fprintf(&console, "\n%s: %v\n", program, err)
	}
	return verdicts(console.Bytes()), console.String()
}

// verdicts finds the verdicts on a console. A line that is not one after all
// leaves its check without a verdict.
func verdicts(console []byte) map[string]Verdict {
	found := map[string]Verdict{}
	lines := bufio.NewScanner(bytes.NewReader(console))
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		_, text, ok := strings.Cut(lines.Text(), verdictMark)
		var v Verdict
		if ok && json.Unmarshal([]byte(text), &v) == nil {
			found[v.Name] = v
		}
	}
	return found
}
