package top

import "slices"

// list is a list of lines, one of which is selected. Lines have keys, so that the selection stays on its line when the
// order changes.
type list struct {
	keys   []string
	chosen int // index in keys
	top    int // index of the first line on the screen
}

// reorder replaces the lines. If the first line is selected, the new first line is, too: new lines remain visible.
func (l *list) reorder(keys []string) {
	if l.chosen < len(l.keys) {
		if i := slices.Index(keys, l.keys[l.chosen]); i >= 0 && l.chosen > 0 {
			l.chosen = i
		}
	}
	l.keys = keys
	l.move(0)
}

// move selects the line n further down.
func (l *list) move(n int) { l.chosen = max(0, min(l.chosen+n, len(l.keys)-1)) }

// key returns the key of the selected line, or "" if there is none.
func (l *list) key() string {
	if l.chosen >= len(l.keys) {
		return ""
	}
	return l.keys[l.chosen]
}

// window returns the range of lines to show on height lines. It includes the selected line.
func (l list) window(height int) (from, to int) {
	from = max(0, min(l.top, len(l.keys)-height))
	if l.chosen < from {
		from = l.chosen
	}
	if l.chosen >= from+height {
		from = l.chosen - height + 1
	}
	return from, min(from+height, len(l.keys))
}
