package redirects

import (
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/portal/redirect"
)

// Usual is a setting in which every match is available.
var Usual = redirect.Setting{Comment: true, RedirectAddr: kernel.RedirectAddr(portal.IPv4)}
