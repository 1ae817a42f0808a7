package view

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/internal/fleet"
	"github.com/usherproxy/usher/cmd/internal/show"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
	"github.com/usherproxy/usher/proxy/outcome"
)

func (v Viewers) newTrace() *cobra.Command {
	t := traceCommand{asks: v.Asks()}
	cmd := &cobra.Command{
		Use:   "trace [SERVICE]",
		Short: "Follow what happens to connections, step by step",
		Long: v.long(`Prints a line for each step of each connection as it happens: accepted, every
attempt with its endpoint, the reason for choosing it, its duration and failure,
established, closed. Changes of Services, endpoints and rules are printed in between;
--changes prints only these. Stop it with Ctrl-C.

--since and --history start with the steps that usher keeps in memory (--trace-events
of 'usher run'). If this command or its terminal is too slow, usher skips steps and
reports their number: "12 steps missed".

On a terminal, lines are colored unless NO_COLOR is set.`,
			`It follows the usher instances on all nodes, unless --local or --node is set, and
each line names its node. Past steps are sorted by time; new steps are printed as
they arrive. Nodes that do not respond are reported on standard error and retried.`),
		Example: `  usher trace
  usher trace web --outcome retry,failed
  usher trace shop/cart --client 10.244.1.0/24 --since 10m
  usher trace --changes --follow=false
  usher trace --history --follow=false -o json | jq .endpoint`,
		Args:              cli.Takes(0, 1, "one SERVICE, or none for all"),
		ValidArgsFunction: CompleteOne(func(cmd *cobra.Command) []string { return t.asks.CompleteServices(cmd, t.Namespace, nil) }),
		RunE:              t.run,
	}
	flags := cmd.Flags()
	flags.StringVar(&t.query.Client, "client", "", "Only this `client`: an address, an address and port, or a network")
	flags.StringVar(&t.query.Endpoint, "endpoint", "", "Only this `endpoint`: an address, an address and port, or a Pod")
	cli.Choice(flags, &t.query.Protocol, "protocol", "", "Only this `protocol`: TCP, UDP, SCTP", api.Values("/events", "protocol")...)
	cli.SomeOf(flags, &t.query.Outcome, "outcome", "Only steps with this `outcome`: ok, retry, failed or an end code; separate several with commas",
		append([]string{api.OutcomeOK, api.OutcomeRetry, api.OutcomeFailed}, outcome.Words()...)...)
	cli.SomeOf(flags, &t.end, "end", "Only connections that end with this `code`; separate several with commas", outcome.Words()...)
	flags.BoolVar(&t.changes, "changes", false, "Only changes: of Services, endpoints, quarantines and rules. usher keeps the last 1,024")
	flags.DurationVar(&t.query.Slower, "slower-than", 0, "Only the ends of connections that waited longer than this for the endpoint's first byte or, without one, to be established")
	flags.Uint64Var(&t.query.Connection, "connection", 0, "Only the connection with this `number`")
	flags.DurationVar(&t.since, "since", 0, "Start with the steps within this time before now, as far as usher still keeps them")
	flags.DurationVar(&t.since, "last", 0, "Same as --since")
	flags.BoolVar(&t.query.History, "history", false, "Start with all steps that usher still keeps")
	flags.BoolVarP(&t.follow, "follow", "f", true, "Keep printing new steps; --follow=false implies --history")
	cli.Choice(flags, &t.output, "output", "o", "Output `format`: json, one object per line. Empty = text", "json")
	t.NamespaceFlag.Register(flags)
	t.asks.RegisterCluster(cmd, &t.NamespaceFlag)
	return cmd
}

type traceCommand struct {
	asks Asks
	NamespaceFlag
	query   client.EventQuery
	end     string
	changes bool
	since   time.Duration
	follow  bool
	output  string

	oldest time.Time                // earlier events are not printed
	ahead  map[string]time.Duration // by node, see clockAhead
	begun  map[string]bool          // by node: whether an event was printed
	ends   []string
	out    io.Writer
	width  int // of the node names
}

// traceRate is the maximum number of events requested a second, more than a terminal shows. Further events count as
// missed.
const traceRate = 10000

func (t *traceCommand) run(cmd *cobra.Command, args []string) error {
	if t.since < 0 {
		return cli.Usagef("--since: invalid value \"%s\": must be at least 0s", t.since)
	}
	if t.changes {
		for _, name := range []string{"client", "protocol", "outcome", "end", "slower-than", "connection"} {
			if cmd.Flags().Changed(name) {
				return cli.Usagef("--%s cannot be combined with --changes: it selects steps of connections", name)
			}
		}
		t.query.Kind = api.KindChanges
	}
	if len(args) == 1 {
		t.query.Service = t.ServiceName(args[0])
	}
	t.query.Endpoint = t.EndpointName(t.query.Endpoint, args)
	t.query.Outcome = cmp.Or(t.query.Outcome, t.end) // if both are set, print filters by end
	t.query.Once, t.query.Rate = !t.follow, traceRate
	t.query.History = t.query.History || t.since > 0 || !t.follow
	if t.since > 0 {
		t.oldest = time.Now().Add(-t.since)
	}
	t.ends = strings.FieldsFunc(t.end, func(r rune) bool { return r == ',' })
	t.out, t.begun = cli.Colored(cmd.OutOrStdout()), map[string]bool{}
	return t.asks.AskAll(cmd, func(ushers []fleet.Usher) error {
		if t.query.Service != "" {
			if err := oneKnows(cmd.Context(), ushers, t.query.Service, HowToList(cmd)); err != nil {
				return err
			}
		}
		if t.since > 0 {
			t.ahead = map[string]time.Duration{}
			for _, a := range fleet.Ask(cmd.Context(), ushers, func(ctx context.Context, u fleet.Usher) (time.Duration, error) { return clockAhead(ctx, u), nil }) {
				t.ahead[a.From.Node] = a.Value
			}
		}
		if t.asks.cluster() {
			return t.printCluster(cmd, ushers)
		}
		for m, err := range ushers[0].Events(cmd.Context(), t.query) {
			if err == nil {
				err = t.print(fleet.Message{From: ushers[0], Message: m})
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// printCluster prints the streams of all usher instances: first the history, sorted by time, and then new events as
// they arrive.
func (t *traceCommand) printCluster(cmd *cobra.Command, ushers []fleet.Usher) error {
	ctx, q := cmd.Context(), t.query
	q.Rate = max(traceRate/len(ushers), minTraceRate)
	for _, u := range ushers {
		t.width = max(t.width, min(ansi.StringWidth(u.Node), maxNodeWidth))
	}
	after := map[string]string{}
	silent := map[string]error{}
	if q.History {
		past := q
		past.Once = true
		for m := range fleet.History(ctx, ushers, past) {
			switch {
			case m.Err != nil:
				silent[m.From.Node] = m.Err
				continue
			case m.ID != "":
				after[m.From.Node] = m.ID
			}
			if err := t.print(m); err != nil {
				return err
			}
		}
		var answers []fleet.Answer[struct{}]
		for _, u := range ushers {
			answers = append(answers, fleet.Answer[struct{}]{From: u, Err: silent[u.Node]})
		}
		if _, err := fleet.Answered(answers); !t.follow || err != nil && !fleet.IsSilent(err) {
			return err
		}
	}
	for m := range fleet.Follow(ctx, t.asks.fleet, ushers, q, after) {
		err := m.Err
		if m.From.Node != "" && err != nil {
			_, err = fleet.Answered([]fleet.Answer[struct{}]{{From: m.From, Err: err}})
		}
		var forbidden *fleet.ForbiddenError
		switch {
		case errors.As(err, &forbidden):
			return err
		case err != nil:
			fmt.Fprintf(cmd.ErrOrStderr(), "usher: %v; retrying\n", err)
		default:
			if err := t.print(m); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// minTraceRate is the minimum number of events a second requested from each usher instance of a large cluster.
// maxNodeWidth is the maximum width of the column for nodes.
const (
	minTraceRate = 100
	maxNodeWidth = 30
)

// print prints one message, unless the flags exclude it. With a history, it omits the number of events missed before
// the node's first printed event: the history starts there.
func (t *traceCommand) print(m fleet.Message) (err error) {
	switch {
	case m.Missed > 0 && t.query.History && !t.begun[m.From.Node]:
		return nil
	case m.Event != nil && (m.Event.Time.Add(t.ahead[m.From.Node]).Before(t.oldest) || len(t.ends) > 0 && !slices.Contains(t.ends, m.Event.End)):
		return nil
	case m.Event != nil:
		t.begun[m.From.Node] = true
	}
	switch {
	case t.output == "json" && m.Event != nil:
		return json.NewEncoder(t.out).Encode(fleet.Reported[api.Event]{Node: m.From.Node, Item: *m.Event})
	case t.output == "json" && m.Missed > 0:
		return json.NewEncoder(t.out).Encode(fleet.Reported[api.Missed]{Node: m.From.Node, Item: api.Missed{Missed: m.Missed}})
	case m.Event != nil:
		_, err = fmt.Fprintln(t.out, show.Event(m.From.Node, t.width, *m.Event))
	case m.Missed > 0 && m.From.Node != "":
		_, err = fmt.Fprintln(t.out, show.Missed(m.Missed)+" on "+show.Clean(m.From.Node))
	case m.Missed > 0:
		_, err = fmt.Fprintln(t.out, show.Missed(m.Missed))
	}
	return err
}
