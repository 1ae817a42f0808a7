package forward

// KeepNothing stops pairs from keeping bytes until the caller calls again, as if others had used up the limit.
func KeepNothing() (again func()) {
	kept.Add(maxKept)
	return func() { kept.Add(-maxKept) }
}

// Kept returns the number of bytes that pairs keep.
func Kept() int64 { return kept.Load() }
