package api

// Page is what all answers with lists have in common. A list is read to its end
// by asking again, with the same parameters and continue set to Continue, until
// that is left out. What comes and goes meanwhile may be missed or seen twice.
type Page struct {
	// Total is how many items match, on all pages.
	Total int `json:"total"`
	// Continue is the value of the parameter continue for the next page; left
	// out on the last one.
	Continue string `json:"continue,omitempty"`
}

// How many items a page has: without the parameter limit, and at the most.
const (
	DefaultLimit = 100
	MaxLimit     = 1000
)

// Error is the body of an answer that is not 2xx.
type Error struct {
	// Code is the HTTP status.
	Code int `json:"code"`
	// Message says what is wrong, and for a parameter its name and what is
	// allowed.
	Message string `json:"message"`
}

// Error implements error.
func (e *Error) Error() string { return e.Message }
