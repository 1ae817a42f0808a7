package proxy

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/usherproxy/usher/affinity"
	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal/handover"
)

// affinitiesName is the name in a handover of the file with which client had which endpoint.
const affinitiesName = "affinities"

// had is which endpoints the clients of a service port had. The file has the time when
// it was written, and then one of these for each service port, as gob.
type had struct {
	Port    config.PortID
	Clients []affinity.Entry
}

// Affinities returns a file in memory with which client had which endpoint, for a
// successor.
func (p *Proxy) Affinities() (*os.File, error) {
	file, err := handover.Memory(affinitiesName)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	var fronts []*frontEnd
	for _, all := range p.services {
		for _, f := range all {
			if f.View().Port.AffinityTimeout > 0 {
				fronts = append(fronts, f)
			}
		}
	}
	p.mu.Unlock()
	now, out := time.Now(), bufio.NewWriter(file)
	to := gob.NewEncoder(out)
	err = to.Encode(now)
	for _, f := range fronts {
		if clients := f.Affinity.Entries(now); len(clients) > 0 && err == nil {
			err = to.Encode(had{Port: f.ID(), Clients: clients})
		}
	}
	if err = errors.Join(err, out.Flush()); err != nil {
		file.Close()
		return nil, fmt.Errorf("writing session affinity: %w", err)
	}
	return file, nil
}

// Between two files that KeepAffinities makes are keepEvery at least, and a hundred times as
// long as it took to make one: for a million clients that is about a second.
const (
	keepEvery = time.Second
	keepRest  = 100
)

// KeepAffinities makes a file like that of Affinities whenever clients have made connections, and
// calls keep with it, which closes it, until ctx ends. So somebody can have one when this
// process crashes.
func (p *Proxy) KeepAffinities(ctx context.Context, keep func(*os.File)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.remembered:
		}
		began := time.Now()
		if file, err := p.Affinities(); err != nil {
			p.Log.WithError(err).Debug("Failed to keep session affinity")
		} else {
			keep(file)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(keepEvery, keepRest*time.Since(began))):
		}
	}
}

// InheritAffinities makes clients keep the endpoints that they had, as a file says that
// Affinities has made. It closes the file. It is called before the first Apply.
func (p *Proxy) InheritAffinities(file *os.File) {
	if err := p.readAffinities(file); err != nil { // an usher of another version has written it, for instance
		p.Log.WithError(err).Warn("Failed to read session affinity; some clients may change endpoints")
	}
}

// readAffinities makes clients keep the endpoints that they had, as file says, which it
// closes. Those of service ports that are not there yet wait in Proxy.had.
func (p *Proxy) readAffinities(file *os.File) error {
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	from := gob.NewDecoder(bufio.NewReader(io.NewSectionReader(file, 0, info.Size())))
	var written time.Time
	if err := from.Decode(&written); err != nil {
		return err
	}
	ago := max(time.Since(written), 0)
	for {
		var h had
		switch err := from.Decode(&h); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		for i := range h.Clients {
			h.Clients[i].Left -= ago
		}
		if f := p.services[h.Port.ServiceName()][h.Port]; f != nil {
			f.restore(h.Clients)
			continue
		}
		if p.had == nil {
			p.had = map[config.PortID][]affinity.Entry{}
		}
		p.had[h.Port] = h.Clients
	}
}

// restore makes clients keep the endpoints that they had.
func (f *frontEnd) restore(clients []affinity.Entry) {
	now := time.Now()
	for _, e := range clients {
		f.Affinity.Restore(e, now)
	}
}
