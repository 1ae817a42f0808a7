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

// keptAffinities are the names under which Options.Store has files that record each client's endpoint, in turn. A new
// file is stored before the previous one is removed.
var keptAffinities = [2]string{"affinities0", "affinities1"}

// affinitiesName is the handover name of the file with the session affinity of all clients.
const affinitiesName = "affinities"

// portAffinity is the gob-encoded session affinity of one service port's clients. The affinity file contains the time
// of writing, then one portAffinity per service port.
type portAffinity struct {
	Port    config.PortID
	Clients []affinity.Entry
}

// Affinities returns a memory file with the session affinity of all clients, for a successor.
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
			err = to.Encode(portAffinity{Port: f.ID(), Clients: clients})
		}
	}
	if err = errors.Join(err, out.Flush()); err != nil {
		file.Close()
		return nil, fmt.Errorf("writing session affinity: %w", err)
	}
	return file, nil
}

// KeepAffinities pauses after each file: for keepEvery, or for keepRest times the duration of writing and passing on
// that file, whichever is longer.
const (
	keepEvery = time.Second
	keepRest  = 20
)

// KeepAffinities stores session affinity in Options.Store when it has new entries, until ctx ends. Session affinity
// thereby survives a crash of this process.
func (p *Proxy) KeepAffinities(ctx context.Context) {
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
			p.keepAffinities(file)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(keepEvery, keepRest*time.Since(began))):
		}
	}
}

// keepAffinities stores file, then removes the previous one, so that a complete file is always stored. A process that
// was killed between the steps has left files under both names. Therefore keepAffinities first removes the file of the
// name that it uses.
func (p *Proxy) keepAffinities(file *os.File) {
	n := p.keeping.affinities
	p.keeping.affinities = 1 - n
	p.Store.Remove(keptAffinities[n])
	if !p.Store.Put(keptAffinities[n], func() *os.File { return file }) {
		file.Close()
	}
	p.Store.Remove(keptAffinities[1-n])
}

// InheritAffinities restores session affinity from a file that Affinities wrote. It closes the file. Call it
// before the first Apply.
func (p *Proxy) InheritAffinities(file *os.File) {
	if err := p.readAffinities(file); err != nil { // for example, another version wrote the file
		p.Log.WithError(err).Warn("Failed to read session affinity; some clients may change endpoints")
	}
}

// readAffinities restores session affinity from file and closes it. Entries of service ports that do not exist yet wait
// in Proxy.pendingAffinities.
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
		var h portAffinity
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
		if p.pendingAffinities == nil {
			p.pendingAffinities = map[config.PortID][]affinity.Entry{}
		}
		p.pendingAffinities[h.Port] = h.Clients
	}
}

// restore adds clients to the front end's affinity table.
func (f *frontEnd) restore(clients []affinity.Entry) {
	now := time.Now()
	for _, e := range clients {
		f.Affinity.Restore(e, now)
	}
}
