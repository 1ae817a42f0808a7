package cli

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Choices is the value of a flag that accepts one of the Allowed values or, with Several, a list separated by commas.
type Choices struct {
	Value   *string
	Allowed []string
	Several bool
	Also    func(word string) bool // reports whether word is an undocumented synonym; nil means none
}

// Choice registers a flag that accepts one of the allowed values; the current value is the
// default.
func Choice(flags *pflag.FlagSet, value *string, name, short, usage string, allowed ...string) {
	flags.VarP(&Choices{Value: value, Allowed: allowed}, name, short, usage)
}

// SomeOf registers a flag that accepts several of the allowed values, separated by commas.
func SomeOf(flags *pflag.FlagSet, value *string, name, usage string, allowed ...string) {
	flags.Var(&Choices{Value: value, Allowed: allowed, Several: true}, name, usage)
}

// String implements pflag.Value, as Type and Set do.
func (c *Choices) String() string {
	if c.Value == nil { // pflag also calls it on a zero value
		return ""
	}
	return *c.Value
}

func (c *Choices) Type() string { return "string" }

func (c *Choices) Set(s string) error {
	words := []string{s}
	if c.Several {
		words = strings.Split(s, ",")
	}
	for _, word := range words {
		if !slices.Contains(c.Allowed, word) && (c.Also == nil || !c.Also(word)) {
			return &ChoiceError{word, c.Allowed}
		}
	}
	*c.Value = s
	return nil
}

// Complete completes the last word, for shell completion.
func (c *Choices) Complete(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	if !c.Several {
		return c.Allowed, cobra.ShellCompDirectiveNoFileComp
	}
	before := typed[:strings.LastIndex(typed, ",")+1]
	var words []string
	for _, word := range c.Allowed {
		words = append(words, before+word)
	}
	return words, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// ChoiceError is the error for a value that is not allowed.
type ChoiceError struct {
	value   string
	allowed []string
}

// Error lists the allowed values, and suggests similar ones.
func (e *ChoiceError) Error() string {
	return fmt.Sprintf("invalid value %q: must be one of %s%s", e.value, strings.Join(e.allowed, ", "), DidYouMean(e.value, e.allowed))
}

// WrongValue describes the error of an invalid number, duration or boolean. It returns "" for other types, whose own
// errors are clear.
func WrongValue(err *pflag.InvalidValueError) string {
	var number *strconv.NumError
	switch kind := err.GetFlag().Value.Type(); {
	case kind == "bool":
		return fmt.Sprintf("invalid value %q: must be true or false", err.GetValue())
	case errors.As(err, &number) && errors.Is(number, strconv.ErrRange):
		return fmt.Sprintf("invalid value %q: out of range", err.GetValue())
	case errors.As(err, &number):
		return fmt.Sprintf("invalid value %q: must be a whole number", err.GetValue())
	case kind == "duration" || kind == "durationSlice":
		for word := range strings.SplitSeq(err.GetValue(), ",") {
			if _, err := time.ParseDuration(word); err != nil && durations.MatchString(word) {
				return fmt.Sprintf("invalid value %q: must be at most 2562047h (292 years)", word)
			} else if err != nil {
				return fmt.Sprintf("invalid value %q: must be a duration such as 250ms, 10s or 1h30m", word)
			}
		}
	}
	return ""
}

// durations matches values in the form of a duration.
var durations = regexp.MustCompile(`^[-+]?((\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h))+$`)

// DidYouMean returns "; did you mean web or web-2?" if a value is similar to allowed values, else "".
func DidYouMean(value string, allowed []string) string {
	const most = 3
	like := &cobra.Command{} // its SuggestionsFor finds similar words
	for _, name := range allowed {
		like.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}})
	}
	for distance := 1; distance <= min(2, len(value)-1); distance++ {
		like.SuggestionsMinimumDistance = distance
		found := like.SuggestionsFor(value)
		if distance == 2 && len(value) < 4 { // many words are at this distance; accept only the same letters, such as wbe for web
			found = slices.DeleteFunc(found, func(name string) bool { return letters(name) != letters(value) })
		}
		if len(found) > 0 {
			return "; did you mean " + strings.Join(found[:min(most, len(found))], " or ") + "?"
		}
	}
	return ""
}

// letters returns the letters of a word, sorted.
func letters(word string) string { return string(slices.Sorted(slices.Values([]rune(word)))) }
