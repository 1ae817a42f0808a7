package main

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/cmd/usher/show"
	"github.com/usherproxy/usher/proxy/admin/client"
)

func newTrace() *cobra.Command {
	var t traceCommand
	cmd := &cobra.Command{
		Use:   "trace [SERVICE]",
		Short: "Follow what happens to connections, step by step",
		Long: `Prints a line for each step of each connection as it happens: accepted, every
attempt with the endpoint, why that one, how long it took and how it failed,
established, closed. Changes of the configuration are told between them. Ctrl-C
ends it.

--since and --history begin with what usher still has in memory (--trace-events of
'usher run'). Steps that were lost because this command, or its terminal, was too
slow are counted: "12 steps missed".

On a terminal lines have colours, unless NO_COLOR is set.`,
		Example: `  usher trace
  usher trace web --outcome retry,failed
  usher trace shop/cart --client 10.244.1.0/24 --since 10m
  usher trace --history --follow=false -o json | jq .endpoint`,
		Args:              takes(0, 1, "one SERVICE, or none for all"),
		ValidArgsFunction: completeOne(func(cmd *cobra.Command) []string { return t.asks.completeServices(cmd, t.namespace, nil) }),
		RunE:              t.run,
	}
	flags := cmd.Flags()
	flags.StringVar(&t.query.Client, "client", "", "only this `client`: an address, an address and port, or a network")
	flags.StringVar(&t.query.Endpoint, "endpoint", "", "only this `endpoint`: an address, an address and port, or a Pod")
	flags.StringVar(&t.query.Protocol, "protocol", "", "only this `protocol`: TCP, UDP, SCTP")
	flags.StringVar(&t.query.Outcome, "outcome", "", "only steps with this `outcome`: ok, retry, failed, or the code of an end; several with commas")
	flags.Uint64Var(&t.query.Connection, "connection", 0, "only the connection with this `number`")
	flags.DurationVar(&t.since, "since", 0, "begin with what happened in this time before now, as far as it is still known")
	flags.BoolVar(&t.query.History, "history", false, "begin with all that is still known")
	flags.BoolVarP(&t.follow, "follow", "f", true, "go on with what happens from now on; --follow=false implies --history")
	flags.StringVarP(&t.output, "output", "o", "", "`format`: json, an object in each line; lines for people without it")
	t.namespaceFlag.register(flags)
	t.asks.register(flags)
	return cmd
}

type traceCommand struct {
	asks askFlags
	namespaceFlag
	query  client.EventQuery
	since  time.Duration
	follow bool
	output string
}

// traceRate is how many events a second are asked for at the most. It is more than
// a terminal shows; what is beyond is counted as missed.
const traceRate = 10000

func (t *traceCommand) run(cmd *cobra.Command, args []string) error {
	switch {
	case t.output != "" && t.output != "json":
		return usagef("--output: %q is not json", t.output)
	case t.since < 0:
		return usagef("--since: %s is less than 0", t.since)
	}
	if len(args) == 1 {
		t.query.Service = t.serviceName(args[0])
	}
	t.query.Once, t.query.Rate = !t.follow, traceRate
	t.query.History = t.query.History || t.since > 0 || !t.follow
	return t.asks.ask(func(c *client.Client) error { return t.print(cmd, c) })
}

// print prints what the stream tells until it ends.
func (t *traceCommand) print(cmd *cobra.Command, c *client.Client) error {
	var oldest time.Time
	if t.since > 0 {
		oldest = time.Now().Add(-t.since)
	}
	out := coloured(cmd.OutOrStdout())
	for m, err := range c.Events(cmd.Context(), t.query) {
		switch {
		case err != nil:
			return err
		case m.Event != nil && m.Event.Time.Before(oldest):
			continue
		}
		if err := t.tell(out, m); err != nil {
			return err
		}
	}
	return nil
}

// tell prints one message.
func (t *traceCommand) tell(out io.Writer, m client.Message) (err error) {
	switch {
	case t.output == "json" && m.Event != nil:
		return json.NewEncoder(out).Encode(m.Event)
	case t.output == "json" && m.Missed > 0:
		return json.NewEncoder(out).Encode(map[string]uint64{"missed": m.Missed})
	case m.Event != nil:
		_, err = fmt.Fprintln(out, show.Event(*m.Event))
	case m.Missed > 0:
		_, err = fmt.Fprintln(out, show.Missed(m.Missed))
	}
	return err
}
