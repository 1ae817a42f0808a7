package top_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/cmd/internal/fleet"
	"github.com/usherproxy/usher/cmd/kubectl-usher/top"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
)

func TestTop(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "top")
}

// usher holds the data for the screens, and records the requests.
type usher struct {
	err         error
	status      api.Status
	services    []api.Service
	connections []api.Connection
	asked       []string
}

func (u *usher) Status(context.Context) (api.Status, error) { return u.status, u.err }

func (u *usher) Services(_ context.Context, q client.ServiceQuery) (api.ServiceList, error) {
	u.asked = append(u.asked, strings.TrimSpace("services "+q.Namespace+" "+q.Text+" "+q.Sort))
	return api.ServiceList{Page: api.Page{Total: len(u.services)}, Items: u.services}, u.err
}

func (u *usher) Connections(_ context.Context, q client.ConnectionQuery) (api.ConnectionList, error) {
	u.asked = append(u.asked, "connections "+q.State+" "+q.Service)
	list := slices.SortedStableFunc(slices.Values(u.connections), func(a, b api.Connection) int {
		if q.Sort == api.SortNewest {
			return cmp.Compare(b.ID, a.ID)
		}
		return fleet.CompareConnections(q.Sort, a, b)
	})
	return api.ConnectionList{Page: api.Page{Total: len(list)}, Items: list}, u.err
}

func (u *usher) Connection(_ context.Context, id uint64) (api.Connection, error) {
	for _, c := range u.connections {
		if c.ID == id {
			return c, nil
		}
	}
	return api.Connection{}, &api.Error{Code: 404, Message: "gone"}
}

// person is a user who looks at a screen and presses keys.
type person struct {
	model tea.Model
}

// sit starts the program on a terminal of this size.
func sit(u *usher, width, height int) *person {
	p := &person{top.New(context.Background(), u, top.Options{Interval: time.Hour})}
	p.happens(tea.WindowSizeMsg{Width: width, Height: height})
	p.asks()
	return p
}

// happens passes a message to the model, and then the result of the model's command.
func (p *person) happens(msg tea.Msg) (quit bool) {
	var cmd tea.Cmd
	p.model, cmd = p.model.Update(msg)
	if cmd == nil {
		return false
	}
	answer := cmd()
	if _, quit = answer.(tea.QuitMsg); !quit {
		p.model, _ = p.model.Update(answer)
	}
	return quit
}

// asks makes the model request data as it does at each interval.
func (p *person) asks() {
	p.press("p")
	p.press("p")
}

// press presses keys by their names.
func (p *person) press(keys ...string) (quit bool) {
	special := map[string]rune{"enter": tea.KeyEnter, "esc": tea.KeyEscape, "up": tea.KeyUp, "down": tea.KeyDown, "pgdown": tea.KeyPgDown, "end": tea.KeyEnd, "backspace": tea.KeyBackspace}
	for _, k := range keys {
		msg := tea.KeyPressMsg{Text: k}
		if code, ok := special[k]; ok {
			msg = tea.KeyPressMsg{Code: code}
		} else {
			msg.Code = []rune(k)[0]
		}
		quit = p.happens(msg)
	}
	return quit
}

// sees returns the lines on the screen, without colors and trailing blanks.
func (p *person) sees() (lines []string) {
	for _, line := range p.model.(top.Model).Lines() {
		lines = append(lines, strings.TrimRight(ansi.Strip(line), " "))
	}
	return lines
}

func newUsher() *usher {
	now := time.Date(2026, 11, 21, 13, 5, 0, 0, time.Local)
	u := &usher{status: api.Status{Instance: "a", Version: "v1", PortalMode: "nftables", Started: now.Add(-187 * time.Second), Now: now, Services: 2,
		Connections: api.Limited{Now: 1, Limit: 9900}}}
	u.services = []api.Service{
		{Namespace: "default", Name: "empty", State: api.ServiceNoEndpoints},
		{Namespace: "default", Name: "web", State: api.ServiceDegraded, Since: now.Add(-24 * time.Hour), Endpoints: api.EndpointCounts{Total: 2, Ready: 1}, Totals: api.Totals{Active: 1, Accepted: 9, Retries: 2}},
	}
	attempt := api.Attempt{Number: 1, Endpoint: "10.1.0.8:80", Reason: "round robin", DurationMs: 1, Result: "connected"}
	u.connections = []api.Connection{
		{ID: 9, Service: "default/web", Client: "192.0.2.2:48201", State: api.Established, Endpoint: "10.1.0.8:80", DurationMs: 1500, Attempts: []api.Attempt{attempt}},
		{ID: 7, Service: "default/web", Protocol: "TCP", VIP: "10.96.0.10:80", Accepted: now, Client: "192.0.2.2:48200", State: api.Ended, End: "client-closed", Endpoint: "10.1.0.8:80", DurationMs: 252, Attempts: []api.Attempt{attempt, attempt}},
	}
	return u
}

var _ = Describe("the screens", func() {
	It("start with the list of Services", func() {
		Expect(sit(newUsher(), 100, 9).sees()).To(Equal([]string{
			"usher v1  portal nftables  up 3m7s",
			"2 Services, no problems  0/s new  0/s failed  0/s retries  connections 1 of 9900",
			"Services, by name",
			"  SERVICE        STATE         SINCE             READY  OPEN  NEW/S  RETRY/S  FAIL/S  P99  FAILED",
			"> default/empty  no-endpoints  -                   0/0     0      0        0       0    -       0",
			"  default/web    degraded      2026-11-20 13:05    1/2     1      0        0       0    -       0",
			"",
			"",
			"↑↓ select  enter connections  c all connections  s sort  / filter  p pause  ? help  q quit",
		}))
	})

	It("lead from a Service to its connections, to one of them, and back", func() {
		u := newUsher()
		p := sit(u, 90, 12)
		p.press("down", "enter")
		Expect(u.asked[len(u.asked)-1]).To(Equal("connections all default/web"))
		Expect(p.sees()[2:6]).To(Equal([]string{
			"Connections of default/web, the newest first",
			"  #  STATE          TRIES  DURATION  CLIENT           ENDPOINT     POD  TO ENDPOINT",
			"> 9  established        1     1.5 s  192.0.2.2:48201  10.1.0.8:80  -            0 B",
			"  7  client-closed      2    252 ms  192.0.2.2:48200  10.1.0.8:80  -            0 B",
		}))
		p.press("j", "enter")
		Expect(p.sees()[2:8]).To(Equal([]string{
			"Connection #7",
			"#7 default/web  TCP  192.0.2.2:48200 → 10.96.0.10:80",
			"accepted 13:05:00.000, ended after 252 ms: client-closed",
			"0 B to the endpoint, 0 B to the client",
			"",
			" 1 10.1.0.8:80 (round robin)",
		}))
		Expect(p.sees()[8]).To(HaveSuffix("█ connected in 1.00 ms"))
		p.press("esc")
		Expect(p.sees()[5]).To(HavePrefix("> 7 "), "the same line is selected")
		p.press("esc")
		Expect(p.sees()[2]).To(Equal("Services, by name"))
		Expect(p.sees()[5]).To(HavePrefix("> default/web"))
	})

	It("lead back to the connections of the Service, and to the first connection, from those of all Services", func() {
		u := newUsher()
		p := sit(u, 90, 12)
		p.press("down", "enter", "enter", "c", "j", "enter")
		Expect(p.sees()[2]).To(Equal("Connection #7"))
		p.press("esc", "esc")
		Expect(p.sees()[2]).To(Equal("Connection #9"))
		p.press("esc")
		Expect(p.sees()[2]).To(Equal("Connections of default/web, the newest first"))
		Expect(u.asked[len(u.asked)-1]).To(Equal("connections all default/web"))
	})

	It("do not show the number of Services as that of connections until usher answers", func() {
		p := sit(newUsher(), 90, 12)
		p.model, _ = p.model.Update(tea.KeyPressMsg{Code: tea.KeyEnter})
		Expect(p.sees()[2]).To(Equal("Connections of default/empty, the newest first"))
	})

	It("sort by the next column with s, and by the previous one with S", func() {
		u := newUsher()
		p := sit(u, 90, 12)
		p.press("s", "s", "s")
		Expect(p.sees()[2]).To(Equal("Services, the most retries first"))
		Expect(u.asked[len(u.asked)-1]).To(Equal("services   retries"))
		p.press("S")
		Expect(p.sees()[2]).To(Equal("Services, the most connections first"))
		p.press("c", "s")
		Expect(p.sees()[2]).To(Equal("Connections, the most attempts first"))
		Expect(p.sees()[4]).To(HavePrefix("> 7 "))
	})

	It("filter Services on the server, and connections locally", func() {
		u := newUsher()
		p := sit(u, 90, 12)
		p.press("/", "w", "q")
		Expect(p.sees()[2]).To(Equal("Services, with “wq▏”, by name"))
		Expect(u.asked[len(u.asked)-1]).To(Equal("services  wq name"))
		p.press("backspace", "enter")
		Expect(p.sees()[2]).To(Equal("Services, with “w”, by name"))
		p.press("c", "/", "4", "8", "2", "0", "1")
		Expect(p.sees()[4:6]).To(Equal([]string{"> 9  established      1     1.5 s  default/web  192.0.2.2:48201  10.1.0.8:80  -", ""}))
		p.press("x")
		Expect(p.sees()[5]).To(Equal("  Nothing matches the filter; esc clears it."))
		p.press("esc")
		Expect(p.sees()[5]).To(HavePrefix("  7 "))
	})

	It("scroll to the selected line", func() {
		u := newUsher()
		u.services = nil
		for i := range 30 {
			u.services = append(u.services, api.Service{Namespace: "default", Name: fmt.Sprintf("s%02d", i)})
		}
		p := sit(u, 90, 9)
		p.press("end")
		Expect(p.sees()[4:8]).To(HaveExactElements(HavePrefix("  default/s26 "), HavePrefix("  default/s27 "), HavePrefix("  default/s28 "), HavePrefix("> default/s29 ")))
		p.press("up")
		Expect(p.sees()[6]).To(HavePrefix("> default/s28"))
	})

	It("show responses that take longer than the interval", func() {
		model := tea.Model(top.New(context.Background(), newUsher(), top.Options{Interval: time.Nanosecond}))
		both := model.Init()().(tea.BatchMsg)
		answer, tick := both[0], both[1]
		for range 3 {
			model, tick = model.Update(tick())
		}
		model, _ = model.Update(answer())
		Expect((&person{model}).sees()).To(ContainElement(HavePrefix("  default/web ")))
	})

	It("keep the last data while usher does not answer, and show the error", func() {
		u := newUsher()
		p := sit(u, 100, 9)
		u.err = &client.UnreachableError{Err: errors.New("connection refused")}
		p.asks()
		Expect(p.sees()[0]).To(MatchRegexp(`^usher v1  portal nftables  up 3m7s  no answer since \d\d:\d\d:\d\d: connection refused$`))
		Expect(p.sees()[5]).To(HavePrefix("  default/web "))
		u.err = nil
		p.asks()
		Expect(p.sees()[0]).To(Equal("usher v1  portal nftables  up 3m7s"))
	})

	It("show a note for a connection that usher no longer keeps", func() {
		u := newUsher()
		p := sit(u, 90, 20)
		p.press("c", "enter")
		u.connections = nil
		p.asks()
		Expect(p.sees()[3]).To(Equal("usher no longer keeps this connection; showing its last known state."))
		Expect(strings.Join(p.sees(), "\n")).To(ContainSubstring("10.1.0.8:80"))
	})

	It("fit a small terminal, and show a message on one that is too small", func() {
		p := sit(newUsher(), 30, 7)
		Expect(p.sees()).To(Equal([]string{
			"usher v1  portal nftables  up…",
			"2 Services, no problems",
			"Services, by name",
			"  SERVICE        STATE",
			"> default/empty  no-endpoints",
			"  default/web    degraded",
			"↑↓ enter esc  s sort  / filte…",
		}))
		p.happens(tea.WindowSizeMsg{Width: 10, Height: 3})
		Expect(p.sees()).To(Equal([]string{"too small"}))
		p.happens(tea.WindowSizeMsg{Width: 5, Height: 1})
		Expect(p.sees()).To(Equal([]string{"too s"}))
	})

	It("show help with ?, and quit with q", func() {
		p := sit(newUsher(), 90, 20)
		p.press("?")
		Expect(strings.Join(p.sees(), "\n")).To(ContainSubstring("esc             back"))
		p.press("x")
		Expect(p.sees()[2]).To(Equal("Services, by name"))
		Expect(p.press("q")).To(BeTrue())
	})
})
