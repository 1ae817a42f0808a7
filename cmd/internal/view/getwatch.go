package view

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/internal/fleet"
	"github.com/usherproxy/usher/cmd/internal/show"
)

// watchInterval is how often -w asks. Of a cluster it asks less often: no more than watchRate ushers a second.
const (
	watchInterval = time.Second
	watchRate     = 50
)

// findInterval is how often those who go on asking look which ushers there are.
const findInterval = 10 * time.Second

// watch prints items, and from then on those that are new or have news, until the command is
// ended. If usher does not answer for a while, that is said once.
func watch[T any](cmd *cobra.Command, f *getFlags, k kind[T], ushers []fleet.Usher, names []string) error {
	var columns []show.Column[fleet.Told[T]] // once there is something to put in them
	var known map[string]string
	titled, told := false, ""
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
		if text != "" && (told == "" || f.asks.cluster() && text != told) {
			fmt.Fprintf(cmd.ErrOrStderr(), "usher: %s; retrying\n", text)
		}
		told = text
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
		now := map[string]string{}
		table := f.output == "" || f.output == "wide"
		if table && columns == nil && len(items) > 0 {
			all := fleet.Columns(withoutNamespace(f, k.columns), k.together(f))
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
			now[key] = news
			if before, is := known[key]; is && before == news || !is && left(item.Item) {
				continue
			}
			switch {
			case f.output == "name":
				fmt.Fprintln(cmd.OutOrStdout(), show.Clean(k.name(item.Item)))
			case !table:
				if err := cli.PrintObject(cmd.OutOrStdout(), f.output, item); err != nil {
					return err
				}
			default:
				if !titled {
					fmt.Fprintln(cmd.OutOrStdout(), lines[0])
					titled = true
				}
				fmt.Fprintln(cmd.OutOrStdout(), lines[i+1])
			}
		}
		if err != nil && known != nil { // what silent nodes had is not news when they are back
			maps.Copy(known, now)
			now = known
		}
		known = now
		if !pause(ctx, len(ushers)) {
			return nil
		}
	}
}

// pause waits until -w is to ask so many ushers again, and reports whether it is.
func pause(ctx context.Context, ushers int) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(max(watchInterval, time.Duration(ushers)*time.Second/watchRate)):
		return true
	}
}
