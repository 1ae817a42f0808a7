package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// A cast is what was seen in a terminal, and when.
type cast struct {
	header header
	events []event
}

// header is the first line of a file.
type header struct {
	Version int               `json:"version"` // 2
	Width   int               `json:"width"`
	Height  int               `json:"height"`
	Title   string            `json:"title"`
	Env     map[string]string `json:"env"`
}

// event is a further line.
type event struct {
	at   time.Duration // since the beginning
	kind string        // see below
	data string
}

// The kinds of events that there are here: what the terminal got to show, and the beginning of
// a command.
const output, marker = "o", "m"

func (e event) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{float64(e.at.Milliseconds()) / 1000, e.kind, e.data})
}

func (e *event) UnmarshalJSON(b []byte) error {
	var seconds float64
	if err := json.Unmarshal(b, &[]any{&seconds, &e.kind, &e.data}); err != nil {
		return err
	}
	e.at = time.Duration(seconds*1000+0.5) * time.Millisecond
	return nil
}

// marshal returns the file.
func (c *cast) marshal() ([]byte, error) {
	var b bytes.Buffer
	lines := json.NewEncoder(&b)
	lines.SetEscapeHTML(false)
	if err := lines.Encode(c.header); err != nil {
		return nil, err
	}
	for _, e := range c.events {
		if err := lines.Encode(e); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}

// parseCast reads what marshal returns.
func parseCast(text []byte) (*cast, error) {
	c, lines := &cast{}, json.NewDecoder(bytes.NewReader(text))
	if err := lines.Decode(&c.header); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	for lines.More() {
		var e event
		if err := lines.Decode(&e); err != nil {
			return nil, fmt.Errorf("event %d: %w", len(c.events)+1, err)
		}
		c.events = append(c.events, e)
	}
	return c, nil
}

// commands are those that are typed.
func (c *cast) commands() (all []string) {
	for _, e := range c.events {
		if e.kind == marker {
			all = append(all, e.data)
		}
	}
	return all
}
