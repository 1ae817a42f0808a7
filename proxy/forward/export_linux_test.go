package forward

// KeepNothing makes pairs keep nothing until they may again, as if others kept all that may be kept.
func KeepNothing() (again func()) {
	kept.Add(maxKept)
	return func() { kept.Add(-maxKept) }
}

// Kept is how many bytes pairs keep.
func Kept() int64 { return kept.Load() }
