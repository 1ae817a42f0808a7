// The connections known to this page, assembled from their steps.

import { get } from './api.js';

const kept = 1000;

let known = new Map(); // by ID, oldest first

export const connections = {
  // load requests the connections that usher keeps. Steps that arrive meanwhile
  // are applied as well. Open connections that are not in the response have ended.
  async load() {
    const open = [...known.values()].filter(c => c.state !== 'ended').map(c => c.id);
    const answer = await get('connections', { state: 'all', limit: kept });
    const answered = new Set(answer.items.map(c => c.id));
    const lowest = answer.continue ? Math.min(...answered) : 0;
    for (const id of open) if (id >= lowest && !answered.has(id)) known.delete(id);
    for (const c of answer.items.toReversed()) known.set(c.id, { ...c, ...newer(known.get(c.id), c) });
    known = new Map([...known].sort(([a], [b]) => a - b));
    trim();
  },

  // newest returns the matching connections, newest first.
  newest(limit, matches = () => true) { return [...known.values()].reverse().filter(c => matches(c)).slice(0, limit); },

  get(id) { return known.get(id); },
  get size() { return known.size; },
  forget() { known.clear(); },

  // step applies an event of the stream. It returns the connection, or none if
  // its first event is missing.
  step(e) {
    if (e.kind === 'accepted') {
      const { service, port, family, protocol, client, via, vip } = e;
      known.set(e.connection, {
        id: e.connection, service, port, family, protocol, client, via, vip, state: protocol === 'UDP' ? 'sending' : 'connecting',
        accepted: e.time, attempts: [], bytesToEndpoint: 0, bytesToClient: 0,
      });
      trim();
    }
    const c = known.get(e.connection);
    if (c) steps[e.kind]?.(c, e);
    return c;
  },
};

const steps = {
  attempt(c, e) {
    if (c.attempts.some(a => a.number === e.attempt)) return;
    const { endpoint, pod, reason, skipped, source, result, error, durationMs = 0 } = e;
    const startMs = Math.max(0, Date.parse(e.time) - Date.parse(c.accepted) - durationMs);
    c.attempts.push({ number: e.attempt, endpoint, pod, reason, skipped, source, result, error, durationMs, startMs });
  },
  established(c, e) {
    c.state = 'established';
    c.endpoint = e.endpoint;
    c.pod = e.pod;
  },
  closed(c, e) {
    c.state = 'ended';
    c.end = e.end;
    c.error = e.error;
    c.durationMs = e.durationMs ?? 0;
    c.bytesToEndpoint = e.bytesToEndpoint ?? 0;
    c.bytesToClient = e.bytesToClient ?? 0;
  },
};

// newer returns the known connection if steps have arrived since usher wrote its response.
function newer(have, answer) {
  const progress = c => (c.state === 'ended' ? 1e6 : c.state === 'established' ? 1e5 : 0) + c.attempts.length;
  return have && progress(have) > progress(answer) ? have : {};
}

function trim() {
  for (const id of known.keys()) {
    if (known.size <= kept) return;
    known.delete(id);
  }
}

// retried reports whether more than one attempt was made.
export function retried(c) { return c.attempts.length > 1; }

// broken reports whether a connection failed for its client.
export function broken(c, ends) {
  const fault = ends.get(c.end)?.fault;
  return fault !== undefined && (fault !== 'none' || c.end === 'no-response');
}

// lasted returns the duration of a connection in milliseconds.
export function lasted(c, now) { return c.state === 'ended' ? c.durationMs : Math.max(0, now - Date.parse(c.accepted)); }
