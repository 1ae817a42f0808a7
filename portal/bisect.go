package portal

// bisect finds the rules for which try fails, when it is given them alone or
// with others. It asks about 2·n·log2(len(rules)/n) times for n such rules. If
// try fails for several rules but for none of them alone, it blames all those.
func bisect(rules []Rule, try func([]Rule) error) map[Target]error {
	bad := map[Target]error{}
	var search func([]Rule) bool
	search = func(part []Rule) (failed bool) {
		if len(part) == 0 {
			return false
		}
		err := try(part)
		switch {
		case err == nil:
			return false
		case len(part) == 1:
			bad[part[0].Target] = err
			return true
		}
		half := len(part) / 2
		left, right := search(part[:half]), search(part[half:])
		if !left && !right {
			for _, r := range part {
				bad[r.Target] = err
			}
		}
		return true
	}
	search(rules)
	return bad
}
