package portal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
)

// all are all modes, in the order in which auto tries them.
var all = []Mode{iptablesMode, nftablesMode, addressMode, noneMode}

// Auto is the name under which New takes the first mode that works.
const Auto = "auto"

// Modes returns the names that New takes.
func Modes() []string {
	names := []string{Auto}
	for _, m := range all {
		names = append(names, m.Name)
	}
	return names
}

// Named returns the modes that New tries, given this name: one or, for Auto, all; none if
// there is no such name.
func Named(name string) []Mode {
	if name == Auto {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(m Mode) bool { return m.Name != name })
}

// With returns the name of the first mode that has such traits, "" if none has.
func With(such func(Traits) bool) string {
	for _, m := range all {
		if such(m.Traits) {
			return m.Name
		}
	}
	return ""
}

// New makes the portal called name, after trying for real whether it works here. [Auto]
// takes the first mode that does, in the order of [Modes], and logs why it passed over
// the others. Nothing stays changed before the first Apply. Options.Others are set.
//
// On Linux the portal acts on the network namespace of the calling thread.
func New(ctx context.Context, name string, opts Options) (Portal, error) {
	tried := Named(name)
	switch {
	case len(tried) == 0:
		return nil, fmt.Errorf("there is no portal called %q; there are %s", name, strings.Join(Modes(), ", "))
	case name != Auto:
		return tried[0].New(ctx, opts.beside(tried[0]))
	}
	return first(ctx, tried, opts)
}

// beside returns the options for m beside all other modes.
func (opts Options) beside(m Mode) Options {
	if opts.Alone {
		return opts
	}
	opts.Others = slices.DeleteFunc(slices.Clone(all), func(o Mode) bool { return o.Name == m.Name })
	return opts
}

// first returns the first of the modes that opens.
func first(ctx context.Context, modes []Mode, opts Options) (Portal, error) {
	opts, err := opts.Complete()
	if err != nil {
		return nil, err
	}
	var passedOver []error
	for _, m := range modes {
		p, err := m.Open(ctx, m, opts.beside(m))
		if err == nil {
			opts.Log.WithField("portal", m.Name).Info("portal chosen")
			return p, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("choosing a portal: %w", ctx.Err())
		}
		opts.Log.WithField("portal", m.Name).WithError(err).Info("portal passed over")
		passedOver = append(passedOver, fmt.Errorf("%s: %w", m.Name, err))
	}
	return nil, fmt.Errorf("no portal works here: %w", errors.Join(passedOver...))
}

// List returns what portals of any mode, of this or another process, have put
// into the kernel, mode by mode. It changes nothing. What cannot be looked at for
// want of a tool or of kernel support is passed over.
//
// On Linux it looks into the network namespace of the calling thread.
func List(ctx context.Context, log logrus.FieldLogger) ([]Installed, error) {
	if err := needNetAdmin(); err != nil {
		return nil, err
	}
	opts, _ := Options{Log: log}.Complete() // nothing is in it that could be wrong
	return ListAll(ctx, all, opts)
}

// Cleanup takes out everything that any mode of portal, of this or an earlier
// process, has put into the kernel, by whichever tools are here. It returns
// what it took out, one line for each kind. What the kernel does not support is passed
// over, since then nothing is in it either; what cannot be looked at for another reason
// is an error.
func Cleanup(ctx context.Context, log logrus.FieldLogger) (removed []string, err error) {
	if err := needNetAdmin(); err != nil {
		return nil, err
	}
	opts, _ := Options{Log: log}.Complete() // nothing is in it that could be wrong
	installed, err := ListAll(ctx, all, opts)
	if err != nil {
		opts.Log.WithError(err).Debug("UDP clients may keep to a former listener")
	}
	removed, err = RemoveAll(ctx, all, opts, true)
	forgetRedirected(func(yield func(Target) bool) {
		for _, i := range installed {
			if !yield(i.Rule.Target) {
				return
			}
		}
	}, opts.Log)
	for _, what := range removed {
		opts.Log.WithField("what", what).Info("portal removed")
	}
	return removed, err
}

// The modes' names.
const (
	ModeAuto     = Auto
	ModeIPTables = "iptables"
	ModeNFTables = "nftables"
	ModeAddress  = "address"
	ModeNone     = "none"
)
