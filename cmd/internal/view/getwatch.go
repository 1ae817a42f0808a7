package view

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/internal/fleet"
	"github.com/usherproxy/usher/cmd/internal/show"
)

// watchInterval is the minimum polling interval of -w, and watchRate the maximum number of instances queried a second:
// with more instances, the interval is longer.
const (
	watchInterval = time.Second
	watchRate     = 50
)

// findInterval is the minimum time between two searches of -w for usher instances.
const findInterval = 10 * time.Second

// watch prints items, and then those that are new or changed, until ctx ends. It reports once that usher does not
// respond, and retries.
func watch[T any](cmd *cobra.Command, f *getFlags, k kind[T], ushers []fleet.Usher, names []string) error {
	type shown struct {
		news string
		item fleet.Reported[T]
	}
	var columns []show.Column[fleet.Reported[T]] // set at the first items
	var known map[string]shown
	titles, printed := "", ""
	ctx, began := cmd.Context(), time.Now()
	found := began
	items, err := k.known(ctx, f, ushers, names)
	if err != nil && !fleet.IsSilent(err) {
		return err
	}
	for ; ; items, err = k.items(ctx, f, ushers, names) {
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != "" && (printed == "" || f.asks.cluster() && text != printed) {
			fmt.Fprintf(cmd.ErrOrStderr(), "usher: %s; retrying\n", text)
		}
		printed = text
		if f.asks.cluster() && time.Since(found) > findInterval {
			if now, err := f.asks.fleet.Find(ctx); err == nil {
				ushers = now
			}
			found = time.Now()
		}
		if err != nil && !fleet.IsSilent(err) {
			if !pause(ctx, len(ushers)) {
				return nil
			}
			continue
		}
		now := map[string]shown{}
		table := f.table()
		if table && columns == nil && len(items) > 0 {
			all := fleet.Columns(k.columnsFor(f, items), k.together(f))
			for i := range all {
				all[i].Some = all[i].Some && !f.asks.cluster() // NODE may be needed later
			}
			columns = show.Shown(all, items, f.output == "wide")
		}
		lines := show.Fit(columns, items, cli.TableWidth(cmd.OutOrStdout(), f.output == "wide"))
		left := func(item T) bool {
			switch {
			case k.past == nil:
				return false
			case known == nil:
				return k.past(item, time.Time{})
			}
			return f.asks.cluster() && k.past(item, began)
		}
		for i, item := range items {
			key, news := item.Node+" "+k.key(item.Item), fmt.Sprint(k.news(item.Item), item.Worst())
			now[key] = shown{news, item}
			if before, is := known[key]; is && before.news == news || !is && left(item.Item) {
				continue
			}
			switch {
			case f.output == "name":
				fmt.Fprintln(cmd.OutOrStdout(), show.Clean(k.name(item.Item)))
			case !table:
				if err := cli.PrintDocument(cmd.OutOrStdout(), f.output, item); err != nil {
					return err
				}
			default:
				if these := strings.Join(strings.Fields(lines[0]), " "); these != titles { // at first, and when other columns fit
					fmt.Fprintln(cmd.OutOrStdout(), lines[0])
					titles = these
				}
				fmt.Fprintln(cmd.OutOrStdout(), lines[i+1])
			}
		}
		for key, before := range known { // items of unresponsive nodes are not new when the nodes respond again
			if _, is := now[key]; !is && slices.ContainsFunc(fleet.SilentNodes(err), before.item.IsFrom) {
				now[key] = before
			}
		}
		known = now
		if !pause(ctx, len(ushers)) {
			return nil
		}
	}
}

// pause waits for the polling interval for this number of usher instances. It returns false if ctx ends.
func pause(ctx context.Context, ushers int) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(max(watchInterval, time.Duration(ushers)*time.Second/watchRate)):
		return true
	}
}
