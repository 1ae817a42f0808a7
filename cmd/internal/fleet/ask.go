package fleet

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/usherproxy/usher/proxy/admin/client"
)

const (
	// AtOnce is how many ushers are asked at the same time: each is a connection of the API server's to a
	// kubelet.
	AtOnce = 16
	// AnswerTime is how long one may take for each answer.
	AnswerTime = 10 * time.Second

	// keep is of how many ushers the connections are kept until the next question. A connection takes nearly a
	// megabyte, most of it what SPDY compresses headers with.
	keep = 64
)

// Answer is what one usher has answered, or why it has not.
type Answer[T any] struct {
	From  Usher
	Value T
	Err   error
}

// Ask asks each usher by do, AtOnce of them at a time. The answers are in the order of the ushers.
func Ask[T any](ctx context.Context, ushers []Usher, do func(context.Context, Usher) (T, error)) []Answer[T] {
	answers := make([]Answer[T], len(ushers))
	room := make(chan struct{}, AtOnce)
	var asking sync.WaitGroup
	for i, u := range ushers {
		room <- struct{}{}
		asking.Go(func() {
			defer func() { <-room }()
			answers[i].From = u
			answers[i].Value, answers[i].Err = do(ctx, u)
			if len(ushers) > keep && u.Client != nil {
				u.Close()
			}
		})
	}
	asking.Wait()
	return answers
}

// SilentError names the nodes whose ushers have not answered, while others have.
type SilentError struct{ text string }

// Error implements error.
func (e *SilentError) Error() string { return e.text }

// IsSilent reports whether err only says that some ushers have not answered.
func IsSilent(err error) bool {
	var silent *SilentError
	return errors.As(err, &silent)
}

// Answered returns the answers that there are, and of those that are missing the nodes, with why: a
// SilentError if there is any answer, a ForbiddenError if nothing may be asked. The error of the only
// usher that was asked, if it is on no node, is returned as it is.
func Answered[T any](answers []Answer[T]) (good []Answer[T], err error) {
	nodes := map[string][]string{}
	var whys []string
	for _, a := range answers {
		if a.Err == nil {
			good = append(good, a)
			continue
		}
		if len(answers) == 1 && a.From.Node == "" {
			return nil, a.Err
		}
		var forbidden interface{ Forbidden() bool } // of portforward
		if errors.As(a.Err, &forbidden) && forbidden.Forbidden() {
			namespace, _, _ := strings.Cut(a.From.Pod, "/")
			return nil, &ForbiddenError{What: "port-forward to Pods", Namespace: namespace, Err: errors.New(client.Cause(a.Err))}
		}
		why := why(a.Err)
		if nodes[why] == nil {
			whys = append(whys, why)
		}
		nodes[why] = append(nodes[why], a.From.Node)
	}
	for i, why := range whys {
		node := "node "
		if len(nodes[why]) > 1 {
			node = "nodes "
		}
		whys[i] = node + strings.Join(nodes[why], ", ") + ": " + why
	}
	switch text := strings.Join(whys, "\n"); {
	case text == "":
		return good, nil
	case good == nil:
		return nil, errors.New(text)
	default:
		return good, &SilentError{text}
	}
}

// why returns in a few words why an usher has not answered.
func why(err error) string {
	var unreachable *client.UnreachableError
	if errors.As(err, &unreachable) {
		return "cannot connect to usher: " + client.Cause(err)
	}
	return err.Error()
}
