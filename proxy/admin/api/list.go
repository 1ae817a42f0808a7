package api

// Page holds the fields that all list answers have. To read a whole list, repeat the request with the same
// parameters and continue set to Continue, until that is left out. Items that are added or removed meanwhile
// may be missed or seen twice.
type Page struct {
	// Total is the number of matching items, on all pages.
	Total int `json:"total"`
	// Continue is the value of the parameter continue for the next page; left
	// out on the last one.
	Continue string `json:"continue,omitempty"`
}

// DefaultLimit is the number of items on a page without the parameter limit, MaxLimit the largest value of limit.
const (
	DefaultLimit = 100
	MaxLimit     = 1000
)

// Error is the body of an answer that is not 2xx.
type Error struct {
	// Code is the HTTP status.
	Code int `json:"code"`
	// Message is the error; for a parameter, it has its name and the allowed values.
	Message string `json:"message"`
}

func (e *Error) Error() string { return e.Message }
