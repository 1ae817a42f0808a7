package manifest

import (
	"slices"
)

// remember returns the objects of a file that said old before and says now
// what is in r. It is where mistakes lose their force:
//
//   - An object that has a good definition is as it says now.
//   - An object that has none, but a bad one, stays as it was.
//   - An object that is not mentioned is gone; but not as long as something in
//     the file cannot be read, since it may be in there.
func remember(old []object, r reading) []object {
	defined := map[key]bool{}
	for _, o := range r.objects {
		defined[o.key] = true
	}
	out := slices.Clip(r.objects)
	for _, o := range old {
		if !defined[o.key] && (r.unreadable || slices.Contains(r.spoiled, o.key)) {
			out = append(out, o)
		}
	}
	return out
}
