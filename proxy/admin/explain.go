package admin

import (
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/admin/api"
)

// explain answers /explain.
func (a *API) explain(r *http.Request) (any, error) {
	q, err := newQuestion(r.URL.Query())
	if err != nil {
		return nil, err
	}
	now := time.Now()
	x, err := a.proxy.Explain(q, now)
	if err != nil {
		return nil, questionError(err)
	}
	id := x.Port.ID
	out := api.Explanation{
		Service: id.ServiceName().String(), Port: id.Port, Family: id.Family.String(), Protocol: string(x.Port.Protocol),
		VIP: x.VIP.AddrPort().String(), VIPKind: string(x.VIP.Kind), Verdict: api.Verdict(x.Verdict), Policy: x.Policy,
		Order: candidates(x.Order, now), NotTried: candidates(x.NotTried, now), ScheduleMs: []float64{}, Text: x.Text,
	}
	if q.Client.IsValid() {
		out.Client = q.Client.String()
	}
	if x.Affinity != nil {
		entry := affinityEntry(*x.Affinity, &proxy.PortView{Port: x.Port, Endpoints: x.Endpoints})
		out.Affinity = &entry
	}
	for _, slot := range a.proxy.Schedule {
		out.ScheduleMs = append(out.ScheduleMs, milliseconds(slot))
	}
	return out, nil
}

func newQuestion(query url.Values) (q proxy.Question, err error) {
	service := query.Get("service")
	if !strings.Contains(service, "/") {
		service = "default/" + service
	}
	if q.Service, err = serviceName(service); err != nil {
		return q, err
	}
	q.Port = query.Get("port")
	if v := query.Get("client"); v != "" {
		if q.Client, err = netip.ParseAddr(v); err != nil {
			return q, badQuery("client", v, "an address such as 192.0.2.2")
		}
		q.Client = q.Client.Unmap()
	}
	if v := query.Get("vip"); v != "" {
		if q.VIP, err = netip.ParseAddrPort(v); err != nil {
			addr, err := netip.ParseAddr(v)
			if err != nil {
				return q, badQuery("vip", v, "an address, or an address and port")
			}
			q.VIP = netip.AddrPortFrom(addr, 0)
		}
	}
	return q, nil
}

// questionError returns the error for a question that has no answer.
func questionError(err error) error {
	var q *proxy.QuestionError
	if !errors.As(err, &q) {
		return err
	}
	code := http.StatusBadRequest
	if q.Field == "service" {
		code = http.StatusNotFound
	}
	return &api.Error{Code: code, Message: q.Error()}
}

func candidates(list []proxy.Candidate, now time.Time) []api.Candidate {
	out := []api.Candidate{}
	for _, c := range list {
		e := c.Endpoint
		out = append(out, api.Candidate{Endpoint: e.Addr.String(), Pod: e.Pod, Node: e.Node, Reason: c.Reason, Text: c.Text, Quarantine: quarantine(e, now)})
	}
	return out
}
