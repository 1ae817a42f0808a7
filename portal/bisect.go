package portal

import "errors"

// undecided is an error of a try that says nothing about the rules: another program
// held a lock, or the process could not do what it had to.
type undecided struct{ error }

func (e undecided) Unwrap() error { return e.error }

func isUndecided(err error) bool { return errors.As(err, new(undecided)) }

// bisect finds the rules for which try fails, when it is given them alone or
// with others. It asks about 2·n·log2(len(rules)/n) times for n such rules. If
// try fails for several rules but for none of them alone, it blames all those. With
// the first error of try that is undecided the search ends with that error, and blames
// none.
func bisect(rules []Rule, try func([]Rule) error) (bad map[Target]error, failed error) {
	bad = map[Target]error{}
	var search func([]Rule) bool
	search = func(part []Rule) (refused bool) {
		if len(part) == 0 || failed != nil {
			return false
		}
		err := try(part)
		switch {
		case isUndecided(err):
			failed = err
			return false
		case err == nil:
			return false
		case len(part) == 1:
			bad[part[0].Target] = err
			return true
		}
		half := len(part) / 2
		left, right := search(part[:half]), search(part[half:])
		if !left && !right && failed == nil {
			for _, r := range part {
				bad[r.Target] = err
			}
		}
		return true
	}
	search(rules)
	if failed != nil {
		return nil, failed
	}
	return bad, nil
}
