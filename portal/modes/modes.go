package modes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/address"
	"github.com/usherproxy/usher/portal/iptables"
	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/portal/nftables"
	"github.com/usherproxy/usher/portal/none"
)

// All are all modes, in the order in which auto tries them.
var All = []portal.Mode{iptables.Mode, nftables.Mode, address.Mode, none.Mode}

// Auto is the name for the first mode that works.
const Auto = "auto"

// None is the name of the mode that installs nothing.
const None = "none"

// Names returns the names that New accepts.
func Names() []string {
	names := []string{Auto}
	for _, m := range All {
		names = append(names, m.Name)
	}
	return names
}

// Named returns the modes that New tries for this name: one or, for Auto, all; none if there is no such name.
func Named(name string) []portal.Mode {
	if name == Auto {
		return All
	}
	return slices.DeleteFunc(slices.Clone(All), func(m portal.Mode) bool { return m.Name != name })
}

// New makes the portal called name, after testing that it works here. [Auto] selects the first mode that does, in the
// order of [Names], and logs why it skipped the others. Nothing stays changed before the first Apply. New sets
// Options.Others.
//
// On Linux the portal acts on the network namespace of the calling thread.
func New(ctx context.Context, name string, opts portal.Options) (portal.Portal, error) {
	tried := Named(name)
	switch {
	case len(tried) == 0:
		return nil, fmt.Errorf("invalid portal %q: must be one of %s", name, strings.Join(Names(), ", "))
	case name != Auto:
		return tried[0].New(ctx, beside(tried[0], opts))
	}
	return first(ctx, tried, opts)
}

// beside returns the options for m, with all other modes.
func beside(m portal.Mode, opts portal.Options) portal.Options {
	opts.Others = slices.DeleteFunc(slices.Clone(All), func(o portal.Mode) bool { return o.Name == m.Name })
	return opts
}

// first returns the first of the modes that opens.
func first(ctx context.Context, modes []portal.Mode, opts portal.Options) (portal.Portal, error) {
	opts, err := opts.Complete()
	if err != nil {
		return nil, err
	}
	var skipped []error
	for _, m := range modes {
		p, err := m.Open(ctx, beside(m, opts))
		if err == nil {
			opts.Log.WithField("portal", m.Name).Info("Portal selected")
			return p, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("selecting a portal: %w", ctx.Err())
		}
		opts.Log.WithField("portal", m.Name).WithError(err).Info("Portal skipped")
		skipped = append(skipped, fmt.Errorf("%s: %w", m.Name, err))
	}
	return nil, fmt.Errorf("no portal works here: %w", errors.Join(skipped...))
}

// List returns the rules that portals of any mode, of this or another process, have installed, mode by mode, as extra
// ones. It changes nothing. It skips rules that it cannot read because a tool or kernel feature is missing.
//
// On Linux it reads the network namespace of the calling thread. log may be nil.
func List(ctx context.Context, log logrus.FieldLogger) ([]portal.Comparison, error) {
	if err := kernel.NeedNetAdmin(); err != nil {
		return nil, err
	}
	opts, _ := portal.Options{Log: log}.Complete() // no value in it can be invalid
	return portal.ListAll(ctx, All, opts)
}

// Cleanup removes everything that any portal mode, of this or an earlier process, has installed in the kernel, with the
// available tools. It returns the removed kinds, one line each. It skips features that the kernel does not support,
// since then nothing is installed. State that it cannot read for another reason is an error.
func Cleanup(ctx context.Context, log logrus.FieldLogger) (removed []string, err error) {
	if err := kernel.NeedNetAdmin(); err != nil {
		return nil, err
	}
	opts, _ := portal.Options{Log: log}.Complete() // no value in it can be invalid
	installed, err := portal.ListAll(ctx, All, opts)
	if err != nil {
		opts.Log.WithError(err).Debug("UDP clients may keep reaching a closed listener")
	}
	removed, err = portal.RemoveAll(ctx, All, opts, true)
	answers, failed := kernel.ForgetAnswers(0)
	last, failedLast := kernel.ForgetLastRoutes()
	removed, err = slices.Concat(removed, answers, last), errors.Join(err, failed, failedLast)
	kernel.ForgetRedirected(func(yield func(portal.Target) bool) {
		for _, i := range installed {
			if !yield(i.Rule.Target) {
				return
			}
		}
	}, opts.Log)
	return removed, err
}
