package accesslog

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/usherproxy/usher/proxy/trace"
)

// Format is the format of a line.
type Format string

// The formats.
const (
	JSON Format = "json"
	Text Format = "text"
)

// Formats are all formats.
var Formats = []string{string(JSON), string(Text)}

// timeFormat is RFC 3339 with milliseconds.
const timeFormat = "2006-01-02T15:04:05.000Z07:00"

// line appends the line for an ended connection. It uses encoding/json only for strings with special characters,
// since there may be tens of thousands of lines per second.
func (f Format) line(b []byte, e *trace.Event) []byte {
	if f == Text {
		return textLine(b, e)
	}
	return jsonLine(b, e)
}

// lost appends a line with the number of lines missing at this point.
func (f Format) lost(b []byte, at time.Time, n int64) []byte {
	if f == Text {
		return fmt.Appendf(b, "%s %d lines lost\n", at.UTC().Format(timeFormat), n)
	}
	return fmt.Appendf(b, "{\"time\":%q,\"lost\":%d}\n", at.UTC().Format(timeFormat), n)
}

func jsonLine(b []byte, e *trace.Event) []byte {
	b = append(b, `{"time":"`...)
	b = e.Time.UTC().AppendFormat(b, timeFormat)
	b = append(b, `","connection":`...)
	b = strconv.AppendUint(b, e.Conn, 10)
	b = appendField(b, "service", e.Port.Namespace+"/"+e.Port.Service)
	b = appendField(b, "port", e.Port.Port)
	b = appendField(b, "protocol", string(e.Protocol))
	b = appendAddr(b, "client", e.Client)
	if e.Via != nil {
		b = appendAddr(b, "via", *e.Via)
	}
	b = appendAddr(b, "vip", e.VIP)
	chosen, established := e.Record.Established()
	if established {
		b = appendAddr(b, "endpoint", chosen.Endpoint)
		b = appendField(b, "pod", chosen.Pod)
		b = appendField(b, "source", chosen.SourceAddress.String())
	}
	b = append(b, `,"attempts":[`...)
	for i, t := range e.Record.Attempts() {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"endpoint":"`...)
		b = t.Endpoint.AppendTo(b)
		b = append(b, '"')
		b = appendField(b, "pod", t.Pod)
		b = appendMilliseconds(appendName(b, "ms"), t.Duration)
		b = appendField(b, "error", t.Err)
		b = append(b, '}')
	}
	b = append(b, ']')
	if queued := max(chosen.Queued, e.End.Queued); queued > 0 {
		b = appendMilliseconds(appendName(b, "queuedMs"), queued)
	}
	if established {
		b = appendMilliseconds(appendName(b, "connectMs"), chosen.Start+chosen.Duration)
	}
	if first := e.Record.FirstByte(); first > 0 {
		b = appendMilliseconds(appendName(b, "firstByteMs"), first)
	}
	b = appendMilliseconds(appendName(b, "durationMs"), e.Duration)
	b = strconv.AppendInt(appendName(b, "bytesToEndpoint"), e.End.ToEndpoint, 10)
	b = strconv.AppendInt(appendName(b, "bytesToClient"), e.End.ToClient, 10)
	b = appendField(b, "end", e.End.Outcome.String())
	b = appendField(b, "error", e.Err)
	return append(b, '}', '\n')
}

// appendName appends a comma, a field's name and a colon. The first field of an object does not use it.
func appendName(b []byte, name string) []byte {
	b = append(b, ',', '"')
	b = append(b, name...)
	return append(b, '"', ':')
}

func appendAddr(b []byte, name string, a netip.AddrPort) []byte {
	b = append(appendName(b, name), '"')
	return append(a.AppendTo(b), '"')
}

// appendField appends a field, unless it is empty.
func appendField(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	return appendQuoted(appendName(b, name), value)
}

// appendQuoted appends a JSON string.
func appendQuoted(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(s) // a string can always be encoded
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

func appendMilliseconds(b []byte, d time.Duration) []byte {
	return strconv.AppendFloat(b, float64(d)/float64(time.Millisecond), 'f', 3, 64)
}

// textLine appends fields separated by spaces, "-" for missing ones: time, service port, protocol, client,
// VIP, endpoint, Pod, attempts, time until established and until the end in milliseconds, bytes to the
// endpoint and to the client, end. If there is an error, it follows in quotes.
func textLine(b []byte, e *trace.Event) []byte {
	b = append(e.Time.UTC().AppendFormat(b, timeFormat), ' ')
	b = append(appendWord(b, e.Port.String()), ' ')
	b = append(append(b, e.Protocol...), ' ')
	b = append(e.Client.AppendTo(b), ' ')
	b = append(e.VIP.AppendTo(b), ' ')
	chosen, established := e.Record.Established()
	if established {
		b = append(chosen.Endpoint.AppendTo(b), ' ')
		b = append(appendWord(b, chosen.Pod), ' ')
	} else {
		b = append(b, "- - "...)
	}
	for i, t := range e.Record.Attempts() {
		if i > 0 {
			b = append(b, ',')
		}
		b = t.Endpoint.AppendTo(b)
		b = append(b, '=')
		b = append(b, t.Result.String()...)
		b = append(b, '/')
		b = appendMilliseconds(b, t.Duration)
	}
	if e.Record.Tries() == 0 {
		b = append(b, '-')
	}
	b = append(b, ' ')
	if established {
		b = append(appendMilliseconds(b, chosen.Start+chosen.Duration), ' ')
	} else {
		b = append(b, "- "...)
	}
	b = append(appendMilliseconds(b, e.Duration), ' ')
	b = append(strconv.AppendInt(b, e.End.ToEndpoint, 10), ' ')
	b = append(strconv.AppendInt(b, e.End.ToClient, 10), ' ')
	b = append(b, e.End.Outcome.String()...)
	if e.Err != "" {
		b = append(b, ' ')
		b = strconv.AppendQuote(b, e.Err)
	}
	return append(b, '\n')
}

// appendWord appends a field, in quotes if it could be mistaken for several.
func appendWord(b []byte, s string) []byte {
	if s == "" {
		return append(b, '-')
	}
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c > '~' || c == '"' {
			return strconv.AppendQuoteToASCII(b, s)
		}
	}
	return append(b, s...)
}
