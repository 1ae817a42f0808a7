package netns

import (
	"context"
	"errors"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/address"
)

// Portal returns the portal of the namespace, one of mode address.
func (n *Namespace) Portal() portal.Portal { return outside{namespace: n} }

// outside is a portal that the helper manages. Its Set and Remove do nothing: the namespace has none of the node's own
// addresses, and everything in it is removed with it.
type outside struct {
	portal.Plain
	namespace *Namespace
}

func (outside) Mode() string { return address.Mode.Name }

func (outside) Traits() portal.Traits { return address.Mode.Traits }

func (o outside) Listen(service string, targets []portal.Target) []portal.Bind {
	a, _ := o.namespace.call(request{Listen: &wanted{service, targets}}) // without a helper there is nothing to listen for
	return a.Binds
}

func (o outside) Apply(_ context.Context, set []portal.Rule, gone []portal.Target) portal.Result {
	a, err := o.namespace.call(request{Apply: &change{set, gone}})
	return a.Result.plain(err)
}

func (o outside) Check(context.Context) portal.Result {
	a, err := o.namespace.call(request{Check: true})
	return a.Result.plain(err)
}

func (o outside) Compare(context.Context) ([]portal.Comparison, error) {
	a, err := o.namespace.call(request{Look: true})
	return a.Comparisons, err
}

// wanted is the input of Listen.
type wanted struct {
	Service string
	Targets []portal.Target
}

// change is the input of Apply.
type change struct {
	Set  []portal.Rule
	Gone []portal.Target
}

// result is the transferred form of portal.Result.
type result struct {
	Refused    map[portal.Target]string
	Moved      []portal.Target
	Repaired   []string
	Failed     string
	Unaffected [len(portal.Families)]bool
}

func resultOf(r portal.Result) result {
	on := result{Refused: map[portal.Target]string{}, Moved: r.Moved, Repaired: r.Repaired, Unaffected: r.Unaffected}
	for t, why := range r.Refused {
		on.Refused[t] = why.Error()
	}
	if r.Err != nil {
		on.Failed = r.Err.Error()
	}
	return on
}

// plain converts r back to the Result. err, if not nil, is why the helper returned none.
func (r result) plain(err error) portal.Result {
	back := portal.Result{Refused: map[portal.Target]error{}, Moved: r.Moved, Repaired: r.Repaired, Err: err, Unaffected: r.Unaffected}
	for t, why := range r.Refused {
		back.Refused[t] = errors.New(why)
	}
	if r.Failed != "" {
		back.Err = errors.New(r.Failed)
	}
	return back
}
