package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// insteadKey is the annotation of deprecated flags with what to use instead; retiredKey is that of flags without effect.
const (
	insteadKey = "instead"
	retiredKey = "retired"
)

// Deprecate hides a flag that the next release will not have. It still has its effect.
func Deprecate(flags *pflag.FlagSet, name, instead string) {
	flags.Lookup(name).Hidden = true
	_ = flags.SetAnnotation(name, insteadKey, []string{instead}) // the flag exists
}

// Retire registers a hidden flag of earlier versions that has no effect. The next release will not have it.
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
