package view

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/internal/fleet"
	"github.com/usherproxy/usher/cmd/internal/show"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/outcome"
)

func (v Viewers) newGetConnections() *cobra.Command {
	f := getFlags{asks: v.Asks()}
	var q client.ConnectionQuery
	cmd := &cobra.Command{
		Use:     "connections [SERVICE… | ID…]",
		Aliases: []string{"connection", "conn"},
		Short:   "connections: client, endpoint, attempts, bytes",
		Long: `Lists open connections, SCTP associations and UDP sessions, newest first. --state
selects ended ones that usher still keeps; the line below the table shows how far
back they reach. Connections that failed, were retried, were slow or got no response
are kept separately and longer. With an ID it shows all attempts of that connection.

--outcome is retried (more than one attempt), slow (the endpoint's first byte took
longer than --slow-threshold of 'usher run'), failed (it ended without an endpoint, or the
endpoint reset it), or ok. --outcome, --slower-than and --retried select open and
ended connections; --end and --last select ended ones.

STATE is connecting, sending (UDP: the endpoint has sent nothing yet), established, or
the end code; see docs/reference.md.`,
		Example: `  usher get connections -A
  usher get connections web --client 10.244.1.0/24
  usher get connections web --outcome failed,retried --last 1h
  usher get connections web --slower-than 250ms --sort first-byte
  usher get connection 42`,
		ValidArgsFunction: f.completeServices,
	}
	var reaches reach
	list := get(&f, f.connectionKind(&q, &reaches))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if ids := connectionIDs(args); len(ids) > 0 {
			for _, other := range []string{"watch", "state", "outcome", "slower-than", "last", "sort", "client", "endpoint", "protocol", "end", "retried"} {
				if cmd.Flags().Changed(other) {
					return cli.Usagef("--%s is for a list of connections, not for connection %d", other, ids[0])
				}
			}
			return f.asks.AskAll(cmd, func(ushers []fleet.Usher) error {
				var missing, silent error
				for _, id := range ids {
					unknown, err := f.printConnection(cmd, ushers, id)
					if err != nil && !fleet.IsSilent(err) {
						return err
					}
					missing = errors.Join(missing, unknown)
					if err != nil {
						silent = err
					}
				}
				return errors.Join(missing, silent)
			})
		}
		q.Endpoint = f.EndpointName(q.Endpoint, args)
		err := list(cmd, args)
		if err != nil && !fleet.IsSilent(err) || !f.table() {
			return err
		}
		if reaches.back != nil {
			fmt.Fprintln(cmd.ErrOrStderr(), show.Reaches(*reaches.back, time.Now()))
		}
		if reaches.saved > 0 {
			fmt.Fprintln(cmd.ErrOrStderr(), show.Saved(reaches.saved, reaches.open))
		}
		return err
	}
	flags := cmd.Flags()
	cli.Choice(flags, &q.State, "state", "", "Connections to list, by `state`: open (default), ended or all", api.Values("/connections", "state")...)
	cli.SomeOf(flags, &q.Outcome, "outcome", "Only connections with this `outcome`: "+strings.Join(conn.FlagWords(), ", ")+"; separate several with commas", conn.FlagWords()...)
	flags.DurationVar(&q.Slower, "slower-than", 0, "Only connections that waited longer than this for the endpoint's first byte or, without one yet, to be established")
	flags.DurationVar(&q.Last, "last", 0, "Only connections that ended within this time before now")
	cli.Choice(flags, &q.Sort, "sort", "", "Sort by newest (default), or largest first by attempts, duration, connect, first-byte or bytes", api.Values("/connections", "sort")...)
	flags.StringVar(&q.Client, "client", "", "Only this `client`: an address, an address and port, or a network")
	flags.StringVar(&q.Endpoint, "endpoint", "", "Only this `endpoint`: an address, an address and port, or a Pod")
	cli.Choice(flags, &q.Protocol, "protocol", "", "Only this `protocol`: TCP, UDP, SCTP", api.Values("/connections", "protocol")...)
	cli.Choice(flags, &q.End, "end", "", "Only connections that ended with this `code`", outcome.Words()...)
	flags.BoolVar(&q.Retried, "retried", false, "Only connections with more than one attempt")
	f.registerAll(cmd)
	return cmd
}

// connectionIDs returns the connection IDs in args, if all arguments are IDs.
func connectionIDs(args []string) (ids []uint64) {
	for _, arg := range args {
		id, err := strconv.ParseUint(strings.TrimPrefix(arg, "#"), 10, 64)
		if err != nil {
			return nil
		}
		ids = append(ids, id)
	}
	return ids
}

// reach records since when the list has the ended connections of all nodes, by this machine's clock. If the list has
// none, it records how many connections are open on all nodes, and how many of them are saved.
type reach struct {
	mu          sync.Mutex
	back        *api.Reaches // nil if no instance reported it
	saved, open int64
}

// note records the times of a node: the latest times of all nodes count.
func (r *reach) note(back *api.Reaches) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.back != nil {
		latest := func(a, b time.Time) time.Time { return slices.MaxFunc([]time.Time{a, b}, time.Time.Compare) }
		back = &api.Reaches{All: latest(r.back.All, back.All), Amiss: latest(r.back.Amiss, back.Amiss)}
	}
	r.back = back
}

// noteOpen adds the open connections of a node. If they are unknown, the table has no line about them.
func (r *reach) noteOpen(s api.Status, err error) {
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.saved, r.open = r.saved+s.SavedConnections, r.open+s.Connections.Now
	}
}

// connectionKind lists the connections that q and the command line select. It records in reaches how far back they
// reach.
func (f *getFlags) connectionKind(q *client.ConnectionQuery, reaches *reach) kind[api.Connection] {
	ended := func() bool { return q.State != "" || q.End != "" || q.Last > 0 } // the flags select a state, or ended connections
	return kind[api.Connection]{
		plural: "connections", columns: show.Connections, service: func(c api.Connection) string { return c.Service },
		order: func(a, b api.Connection) int { return fleet.CompareConnections(q.Sort, a, b) },
		list: func(ctx context.Context, u fleet.Usher, names []string) ([]api.Connection, error) {
			q := *q
			if q.Service = f.only(names); f.watch && !ended() {
				q.State = "all" // to see how they end
			}
			list, err := u.Connections(ctx, q)
			if r := list.Reaches; r != nil {
				ahead := time.Duration(0)
				if !f.watch {
					ahead = clockAhead(ctx, u)
				}
				reaches.note(&api.Reaches{All: r.All.Add(ahead), Amiss: r.Amiss.Add(ahead)})
			} else if !f.watch && f.table() {
				reaches.noteOpen(u.Client.Status(ctx))
			}
			return list.Items, err
		},
		past: func(c api.Connection, before time.Time) bool {
			return c.End != "" && !ended() && (before.IsZero() || c.Accepted.Add(time.Duration(c.DurationMs*float64(time.Millisecond))).Before(before))
		},
		name: connectionName,
		key:  func(c api.Connection) string { return fmt.Sprint(c.ID, c.Accepted.UnixNano()) }, // IDs start at 1 again in another usher process
		news: func(c api.Connection) string { return fmt.Sprint(show.ConnectionState(c), len(c.Attempts)) },
	}
}

func connectionName(c api.Connection) string { return fmt.Sprintf("connection/%d", c.ID) }

// printConnection prints one connection with its attempts. Each node numbers its own connections, so it prints those of
// all nodes with this ID. In a cluster, unknown is set if no node has it. err is any other error.
func (f *getFlags) printConnection(cmd *cobra.Command, ushers []fleet.Usher, id uint64) (unknown, err error) {
	answers, err := fleet.Answered(fleet.Ask(cmd.Context(), ushers, func(ctx context.Context, u fleet.Usher) (*api.Connection, error) {
		connection, err := u.Connection(ctx, id)
		if f.asks.cluster() && client.IsNotFound(err) {
			return nil, nil
		}
		return &connection, err
	}))
	if err != nil && !fleet.IsSilent(err) {
		return nil, err
	}
	if f.asks.cluster() {
		unknown = fmt.Errorf("no node has connection %d", id)
	}
	out := cmd.OutOrStdout()
	for _, a := range answers {
		if a.Value == nil {
			continue
		}
		unknown = nil
		switch f.output {
		case "json", "yaml":
			if err := cli.PrintDocument(out, f.output, fleet.Reported[api.Connection]{Node: a.From.Node, Item: *a.Value}); err != nil {
				return nil, err
			}
			continue
		case "name":
			fmt.Fprintln(out, connectionName(*a.Value))
			continue
		}
		if a.From.Node != "" {
			cli.PrintLines(out, []string{show.Title.Text("On node " + show.Clean(a.From.Node))})
		}
		cli.PrintLines(out, show.Waterfall(*a.Value, cli.TerminalWidth(out)))
	}
	return unknown, err
}
