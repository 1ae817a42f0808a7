package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// insteadKey is the annotation with advice for users of a deprecated flag; retiredKey marks flags without effect.
const (
	insteadKey = "instead"
	retiredKey = "retired"
)

// Deprecate hides a flag that still works but that the next release will not have. instead is advice for its users.
func Deprecate(flags *pflag.FlagSet, name, instead string) {
	flags.Lookup(name).Hidden = true
	_ = flags.SetAnnotation(name, insteadKey, []string{instead}) // the flag exists
}

// Retire registers a hidden flag of earlier versions that has no effect and that the next release will not have. A
// boolean flag needs no value.
func Retire(flags *pflag.FlagSet, name string, boolean bool, instead string) {
	flags.String(name, "", "")
	if boolean {
		flags.Lookup(name).NoOptDefVal = "true"
	}
	Deprecate(flags, name, "it has no effect; "+instead)
	_ = flags.SetAnnotation(name, retiredKey, nil) // the flag exists
}

// Retired reports whether f has no effect.
func Retired(f *pflag.Flag) bool {
	_, is := f.Annotations[retiredKey]
	return is
}

// Deprecations returns a warning for each deprecated flag that is set.
func Deprecations(flags *pflag.FlagSet) (warnings []string) {
	flags.Visit(func(f *pflag.Flag) {
		if instead := strings.Join(f.Annotations[insteadKey], ""); instead != "" {
			warnings = append(warnings, fmt.Sprintf("--%s is deprecated: %s", f.Name, instead))
		}
	})
	return warnings
}
