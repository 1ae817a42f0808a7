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
	// AtOnce is the maximum number of usher instances that are queried at once. Each query is a connection from the API
	// server to a kubelet.
	AtOnce = 16
	// AnswerTime is the time limit for an answer. A Finder sets it in its clients.
	AnswerTime = 10 * time.Second

	// keep is the maximum number of instances whose connections stay open for the next query. A connection takes nearly
	// 1 MB, most of it for SPDY's compression of headers.
	keep = 64
)

// Answer is the answer of one usher instance, or the reason why there is none.
type Answer[T any] struct {
	From  Usher
	Value T
	Err   error
}

// Ask calls do for each usher instance, AtOnce of them at a time. The answers are in the order of ushers.
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

// SilentError names the nodes whose usher instances returned an error or did not respond, while others responded.
type SilentError struct {
	text  string
	nodes []string
}

// Error implements error.
func (e *SilentError) Error() string { return e.text }

// SilentNodes returns the nodes that err names if it is a SilentError.
func SilentNodes(err error) []string {
	if silent, ok := errors.AsType[*SilentError](err); ok {
		return silent.nodes
	}
	return nil
}

// IsSilent reports whether err is a SilentError.
func IsSilent(err error) bool { return len(SilentNodes(err)) > 0 }

// Answered returns the successful answers, and an error that names the other nodes with the reasons. It is a
// SilentError if there is a successful answer. If a query was forbidden, Answered returns only a ForbiddenError: the
// permission is the same for all nodes. The error of a single instance without a node is returned unchanged.
func Answered[T any](answers []Answer[T]) (good []Answer[T], err error) {
	nodes := map[string][]string{}
	var whys, silent []string
	for _, a := range answers {
		if a.Err == nil {
			good = append(good, a)
			continue
		}
		if len(answers) == 1 && a.From.Node == "" {
			return nil, a.Err
		}
		var forbidden interface{ Forbidden() bool } // implemented by an error of portforward
		if errors.As(a.Err, &forbidden) && forbidden.Forbidden() {
			namespace, _, _ := strings.Cut(a.From.Pod, "/")
			return nil, &ForbiddenError{What: "port-forward to Pods", Namespace: namespace, Err: errors.New(client.Cause(a.Err))}
		}
		why := why(a.Err)
		if nodes[why] == nil {
			whys = append(whys, why)
		}
		nodes[why], silent = append(nodes[why], a.From.Node), append(silent, a.From.Node)
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
		return good, &SilentError{text, silent}
	}
}

// why returns in a few words why there is no answer from an usher instance.
func why(err error) string {
	if _, ok := errors.AsType[*client.UnreachableError](err); ok {
		return "cannot connect to usher: " + client.Cause(err)
	}
	return err.Error()
}
