package kernel

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
)

// InputDrops returns the chains of host firewalls that may drop or reject redirected packets, which arrive in INPUT. It
// reads nf_tables, iptables-nft included, and legacy iptables, and follows jumps. It recognizes rules for a redirect
// address, for translated packets, and usher's own; it does not evaluate other conditions.
func InputDrops() (drop []string, err error) {
	c, err := nftables.New()
	if err != nil {
		return nil, err
	}
	chains, err := c.ListChains()
	if err != nil {
		return nil, err
	}
	for _, chain := range chains {
		family, inet := "inet", chain.Table.Family == nftables.TableFamilyINet
		for _, f := range portal.Families {
			if chain.Table.Family == NFTFamily(f) {
				family, inet = map[bool]string{false: "ip", true: "ip6"}[f.Is6()], true
			}
		}
		if chain.Hooknum == nil || *chain.Hooknum != *nftables.ChainHookInput || !inet || chain.Type != nftables.ChainTypeFilter {
			continue
		}
		j := inputJudge{rules: func(name string) (rules []inputRule) {
			list, readErr := c.GetRules(chain.Table, &nftables.Chain{Name: name})
			err = errors.Join(err, readErr)
			for _, r := range list {
				rules = append(rules, inputRuleOf(c, r))
			}
			return rules
		}}
		if name := j.drops(chain.Name, chain.Policy != nil && *chain.Policy == nftables.ChainPolicyDrop); name != "" {
			drop = append(drop, fmt.Sprintf("chain %s of table %s %s", name, family, chain.Table.Name))
		}
	}
	for _, f := range portal.Families {
		drop = append(drop, legacyInputDrops(f)...)
	}
	return drop, err
}

// inputVerdict is the effect of a rule or a chain.
type inputVerdict int

const (
	inputGoesOn inputVerdict = iota
	inputReturns
	inputAccepts
	inputAcceptsRedirected
	inputDrops
)

// inputRule is the relevant part of a rule.
type inputRule struct {
	verdict inputVerdict
	to      []string // the chains that it may jump to
	always  bool     // it has no condition
}

// inputJudge follows the chains of a table.
type inputJudge struct {
	rules func(chain string) []inputRule
	maybe string // a chain that drops the packets that reach it, perhaps none
}

// drops returns the chain that may drop redirected packets, or "".
func (j *inputJudge) drops(base string, byPolicy bool) string {
	switch verdict, chain := j.follow(base, true, 0); {
	case verdict == inputDrops:
		return chain
	case verdict != inputGoesOn:
		return ""
	case byPolicy:
		return base
	}
	return j.maybe
}

// follow returns the verdict of a chain, and the chain that decides. sure says that all packets reach the chain.
func (j *inputJudge) follow(chain string, sure bool, depth int) (inputVerdict, string) {
	if depth > 16 { // the kernel's limit for nested chains
		return inputGoesOn, ""
	}
	for _, r := range j.rules(chain) {
		switch {
		case r.verdict == inputAcceptsRedirected:
			return r.verdict, chain
		case !r.always:
			sure = sure && r.verdict != inputReturns
		case r.verdict == inputDrops && !sure:
			j.maybe = cmp.Or(j.maybe, chain)
			return inputGoesOn, ""
		case r.verdict == inputReturns, r.verdict != inputGoesOn && !sure:
			return inputGoesOn, ""
		case r.verdict != inputGoesOn:
			return r.verdict, chain
		}
		for _, to := range r.to {
			if verdict, where := j.follow(to, sure && r.always, depth+1); verdict != inputGoesOn {
				return verdict, where
			}
		}
	}
	return inputGoesOn, ""
}

// usherAccepts is the chain of portal iptables that accepts redirected packets.
const usherAccepts = "USHER-ACCEPT"

// inputRuleOf converts a rule of nf_tables.
func inputRuleOf(c *nftables.Conn, rule *nftables.Rule) inputRule {
	r := inputRule{always: true}
	redirected := false
	verdict := func(v *expr.Verdict) {
		switch v.Kind {
		case expr.VerdictAccept:
			r.verdict = inputAccepts
		case expr.VerdictDrop:
			r.verdict = inputDrops
		case expr.VerdictReturn:
			r.verdict = inputReturns
		case expr.VerdictJump, expr.VerdictGoto:
			r.to = append(r.to, v.Chain)
		}
	}
	for _, e := range rule.Exprs {
		switch e := e.(type) {
		case *expr.Counter, *expr.Log:
		case *expr.Verdict:
			verdict(e)
		case *expr.Reject:
			r.verdict = inputDrops
		case *expr.Target: // of iptables
			if e.Name == "REJECT" {
				r.verdict = inputDrops
			}
		case *expr.Match:
			conntrack, _ := e.Info.(*xt.ConntrackMtinfo3)
			redirected = redirected || conntrack != nil && conntrack.StateMask&(1<<7) != 0 // XT_CONNTRACK_STATE_DNAT
			r.always = r.always && e.Name == "comment"
		case *expr.Lookup:
			set, err := c.GetSetByName(rule.Table, e.SetName)
			if err != nil {
				r.always = false
				continue
			}
			elements, _ := c.GetSetElements(set)
			for _, of := range elements {
				redirected = redirected || isLandingBytes(of.Key)
				// The library does not decode verdicts: an attribute with the kind, and one with the chain.
				if e.IsDestRegSet && e.DestRegister == unix.NFT_REG_VERDICT && len(of.Val) > 12 {
					name, _, _ := bytes.Cut(of.Val[12:], []byte{0})
					r.to = append(r.to, string(name))
				}
			}
			r.always = false
		case *expr.Cmp:
			redirected = redirected || isLandingBytes(e.Data)
			r.always = false
		case *expr.Ct:
			redirected = redirected || e.Key == expr.CtKeySTATUS
			r.always = false
		default:
			r.always = false
		}
	}
	if redirected && r.verdict == inputAccepts || len(r.to) == 1 && r.to[0] == usherAccepts {
		r.verdict = inputAcceptsRedirected
	}
	return r
}

func isLandingBytes(b []byte) bool {
	addr, is := netip.AddrFromSlice(b)
	return is && IsRedirectAddr(addr)
}

var (
	savedComment    = regexp.MustCompile(`-m comment --comment ("(\\.|[^"\\])*"|\S+) `)
	savedRule       = regexp.MustCompile(`^-A (\S+) (.*)-[jg] (\S+)`)
	savedRedirected = regexp.MustCompile(`--ctstate \S*DNAT|-d (` + regexp.QuoteMeta(redirectAddr4.String()) + `|` + redirectAddr6.String() + `)\b`)
)

// legacyInputDrops is InputDrops for legacy iptables. It reads the table only if that exists: reading would create it.
func legacyInputDrops(family portal.Family) []string {
	is, err := legacyTable(family, "filter")
	if err != nil || !is {
		return nil
	}
	program, chains, byPolicy := "iptables-legacy-save", map[string][]inputRule{}, false
	if family.Is6() {
		program = "ip6tables-legacy-save"
	}
	saved, err := exec.Command(program, "-t", "filter").Output()
	if err != nil {
		return []string{fmt.Sprintf("a chain of legacy iptables that cannot be read here (%s: %v)", program, err)}
	}
	verdicts := map[string]inputVerdict{"ACCEPT": inputAccepts, "DROP": inputDrops, "REJECT": inputDrops, "RETURN": inputReturns}
	for line := range strings.Lines(string(saved)) {
		byPolicy = byPolicy || strings.HasPrefix(line, ":INPUT DROP ")
		words := savedRule.FindStringSubmatch(savedComment.ReplaceAllString(line, ""))
		if words == nil {
			continue
		}
		r := inputRule{verdict: verdicts[words[3]], always: words[2] == ""}
		if r.verdict == inputGoesOn {
			r.to = []string{words[3]} // or a target such as LOG, which acts like a chain without rules
		}
		if r.verdict == inputAccepts && savedRedirected.MatchString(words[2]) || words[3] == usherAccepts {
			r.verdict = inputAcceptsRedirected
		}
		chains[words[1]] = append(chains[words[1]], r)
	}
	j := inputJudge{rules: func(chain string) []inputRule { return chains[chain] }}
	if name := j.drops("INPUT", byPolicy); name != "" {
		return []string{fmt.Sprintf("chain %s of table filter of %s", name, strings.TrimSuffix(program, "-save"))}
	}
	return nil
}
