package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/portal/redirect"
)

// run runs an iptables command and returns its output. The error contains the command's error output. It is undecided
// (redirect.MarkUndecided) unless the command itself refused its input.
func run(ctx context.Context, stdin, command string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, command, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	// The process ID is the port ID of its first netlink socket (netlink(7)).
	err := kernel.OwnSockets.AddOf(func() (uint32, error) {
		if err := cmd.Start(); err != nil {
			return 0, err
		}
		return uint32(cmd.Process.Pid), nil
	})
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		var exit *exec.ExitError
		refused := errors.As(err, &exit) && exit.Exited() && ctx.Err() == nil && !ofLock(stderr.String())
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		err = fmt.Errorf("%s: %w: %s", command, err, lastLines(stderr.String()))
		if !refused {
			err = redirect.MarkUndecided(err)
		}
		return "", err
	}
	return out.String(), nil
}

// isLocked reports whether a command failed because another program has held the xtables lock for longer than LockWait.
func isLocked(err error) bool {
	return err != nil && strings.Contains(err.Error(), "holding the xtables lock")
}

// ofLock reports whether an error is about the xtables lock (xtables_lock in iptables/xshared.c).
func ofLock(stderr string) bool {
	return strings.Contains(stderr, "xtables lock") || strings.Contains(stderr, "lock file")
}

// lastLines joins the last three lines of a command's error output, without the hints that iptables always prints.
func lastLines(text string) string {
	var kept []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || strings.HasPrefix(line, "Try `") || strings.HasPrefix(line, "Error occurred at line") {
			continue
		}
		kept = append(kept, line)
	}
	if len(kept) > 3 {
		kept = kept[len(kept)-3:]
	}
	return strings.Join(kept, "; ")
}

// hint adds to an iptables error the missing feature and the remedy.
func hint(err error, ip6 bool) error {
	if err == nil {
		return nil
	}
	six := ""
	if ip6 {
		six = "6"
	}
	text := err.Error()
	if strings.Contains(text, "\n") {
		err = oneLine{err}
	}
	has := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(text, p) })
	}
	var advice string
	switch {
	case errors.Is(err, exec.ErrNotFound):
		advice = "install the iptables package, or choose --portal=nftables, address or none"
	case ofLock(text):
		advice = "/run/xtables.lock is held by another program or cannot be opened; in a container, mount the host's /run/xtables.lock"
	case has("incompatible"):
		advice = "the table holds nftables rules that iptables does not understand"
	case has("Failed to initialize nft", "Could not fetch rule set generation id"):
		advice = "this kernel has no nf_tables: modprobe nf_tables, or use legacy iptables"
	case has("can't initialize", "Table does not exist", "TABLE_ADD failed", "CHAIN_ADD failed"):
		advice = fmt.Sprintf("this kernel lacks a table that iptables needs: modprobe ip%stable_nat (or nft_chain_nat)", six)
	case has("RULE_APPEND failed", "No chain/target/match by that name", "Couldn't load"):
		advice = "this kernel or iptables lacks a match or target: modprobe xt_nat xt_REDIRECT xt_tcpudp nft_compat"
	case has("Permission denied", "Operation not permitted"):
		advice = kernel.NotAllowed
	default:
		return err
	}
	return fmt.Errorf("%w (%s)", err, advice)
}

// oneLine is an error whose text, as printed by iptables, has several lines.
type oneLine struct{ error }

func (e oneLine) Error() string { return lastLines(e.error.Error()) }

func (e oneLine) Unwrap() error { return e.error }

// variants returns the installed variants of iptables that opts.IPTablesVariant allows, in order of preference.
func variants(ctx context.Context, opts portal.Options) []found {
	var all []found
	plainNFT, plain := isNFT(ctx, "iptables")
	for _, v := range []variant{{"nft", true}, {"legacy", false}} {
		if _, here := isNFT(ctx, v.command(false, "")); here {
			all = append(all, found{variant: v, plain: plain && v.nft == plainNFT})
		}
	}
	if plain && !slices.ContainsFunc(all, func(f found) bool { return f.plain }) {
		all = append(all, found{variant: variant{"", plainNFT}, plain: true})
	}
	var wanted []found
	for _, f := range all {
		if opts.IPTablesVariant != "" && f.nft != (opts.IPTablesVariant == "nft") {
			continue
		}
		for _, ip6 := range []bool{false, true} {
			text, err := run(ctx, "", f.command(ip6, "-save"))
			f.works = f.works || err == nil
			f.saved += text
		}
		wanted = append(wanted, f)
	}
	return byUse(wanted)
}

// isNFT reports whether an iptables command exists and whether it puts rules into nf_tables. It parses the version:
// "iptables v1.8.9 (nf_tables)".
func isNFT(ctx context.Context, command string) (nft, here bool) {
	if _, err := exec.LookPath(command); err != nil {
		return false, false
	}
	text, err := run(ctx, "", command, "--version")
	return strings.Contains(text, "nf_tables"), err == nil
}

// waitArgs returns the arguments with which iptables-restore of this version waits for the xtables lock: none before
// 1.6.2, which cannot wait.
func waitArgs(version string, lockWait time.Duration) []string {
	var major, minor, patch int
	_, number, _ := strings.Cut(version, " v")
	_, _ = fmt.Sscanf(number, "%d.%d.%d", &major, &minor, &patch) // 1.8 has no patch
	if slices.Compare([]int{major, minor, patch}, []int{1, 6, 2}) < 0 {
		return nil
	}
	return []string{"--wait", fmt.Sprint(int(lockWait / time.Second))}
}
