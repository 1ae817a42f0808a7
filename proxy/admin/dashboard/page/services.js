// All Services, updated a page at a time, with their recent history.

import { get } from './api.js';
import { live } from './live.js';
import { serviceStates } from './words.js';

const pageSize = 1000; // the maximum in one response
const samples = 40; // in the history of each Service

// A Service here is the API's, with
//   key       namespace/name
//   text      the text for searches
//   history   [{ t, accepted, failed, retries }], newest last
const known = new Map();
const nothing = { q: '', keys: new Set() };
let found = nothing; // result of a search by usher
let wanted = ''; // the last search
let pending = ''; // the search that waits for a response
let complete = false; // every Service has been received once
let shown = []; // keys of the Services on the screen
let round = newRound();
let reading = Promise.resolve(); // the last request for a page; the next one waits for it
let loading = null; // the load that is in progress
let version = 0; // increases when known changes
let names = null; // the keys of known, sorted; null if they have changed
let last = {}; // the last arguments of list, and its result

export const services = {
  get complete() { return complete; },
  get size() { return known.size; },
  get(key) { return known.get(key); },
  all() { return known.values(); },

  // show sets the Services on the screen: each refresh requests them.
  show(keys) { shown = keys.slice(0, 60); },

  // counts returns the number of Services in each state.
  counts() {
    const counts = Object.fromEntries(Object.keys(serviceStates).map(s => [s, 0]));
    for (const s of known.values()) counts[s.state] = (counts[s.state] ?? 0) + 1;
    return counts;
  },

  // list returns the matching Services, sorted by name unless sort is set.
  list({ q, states, sort, descending }) {
    q = q.trim().toLowerCase();
    const asked = [version, q, states, sort, descending].join();
    if (last.asked === asked) return last.answer;
    names ??= [...known.keys()].sort();
    const out = names.map(key => known.get(key)).filter(s => (!states || states.includes(s.state))
      && (!q || s.text.includes(q) || found.q === q && found.keys.has(s.key)));
    const by = orders[sort];
    const sign = descending ? -1 : 1;
    if (by) out.sort((a, b) => sign * by(a, b)); // equal ones stay sorted by name
    else if (descending) out.reverse();
    last = { asked, answer: out };
    return out;
  },

  // find queries usher, which also searches endpoints and Pods: this page does not
  // have them for every Service. It resolves when list has the result.
  async find(q) {
    wanted = q = q.trim().toLowerCase();
    if (!q) {
      found = nothing;
      return;
    }
    if (q === pending) return;
    pending = q;
    const answer = await get('services', { q, limit: pageSize }).finally(() => { if (q === pending) pending = ''; });
    answer.items.filter(s => !known.has(keyOf(s))).forEach(take); // refresh updates the others
    if (q === wanted) found = { q, keys: new Set(answer.items.map(keyOf)) };
    version++;
  },

  // load requests all Services; those that have arrived are available meanwhile. If the
  // first load fails, the next one requests the rest.
  load(progress) {
    if (loading) return loading;
    if (complete) round = newRound();
    const mine = loading = readPages(progress).finally(() => { if (loading === mine) loading = null; });
    return mine;
  },

  // refresh requests a page, and the Services on the screen.
  async refresh() {
    const page = await readPage();
    const missing = shown.filter(key => !page.has(key) && known.has(key));
    if (missing.length === 0) return;
    const answer = await get('services', { service: missing, limit: pageSize });
    answer.items.forEach(take);
  },

  forget() {
    known.clear();
    names = null;
    version++;
    round = newRound();
    loading = null;
    complete = false;
    found = nothing;
  },
};

// newRound returns the state of a round of requests for all Services: the position of
// the next page, and the keys so far.
function newRound() { return { next: '', seen: new Set() }; }

async function readPages(progress) {
  const mine = round;
  do {
    await readPage();
    progress();
  } while (mine === round); // a round that is complete, or that forget ends, is replaced
}

// readPage requests the next page. Pages are requested one after the other.
function readPage() { return reading = reading.catch(() => {}).then(requestPage); }

async function requestPage() {
  const current = round;
  const answer = await get('services', { limit: pageSize, continue: current.next }).catch(err => {
    if (err.status > 0) current.next = ''; // usher may no longer know this position
    throw err;
  });
  if (current !== round) return new Set(); // forget was called
  const page = new Set(answer.items.map(keyOf));
  answer.items.forEach(take);
  page.forEach(key => current.seen.add(key));
  current.next = answer.continue ?? '';
  if (current.next === '') {
    for (const key of known.keys()) if (!current.seen.has(key)) drop(key);
    round = newRound();
    complete = true;
  }
  return page;
}

function keyOf(service) { return `${service.namespace}/${service.name}`; }

function take(service) {
  version++;
  const key = keyOf(service);
  if (!known.has(key)) names = null;
  const history = known.get(key)?.history ?? [];
  const { accepted, failed, retries } = service.totals;
  if (history.at(-1)?.accepted > accepted) history.length = 0; // the counters were reset
  history.push({ t: live.now(), accepted, failed, retries });
  if (history.length > samples) history.shift();
  const ports = service.ports.map(p => `${p.name ?? ''} ${p.vip} ${p.protocol}`).join(' ');
  known.set(key, { ...service, key, history, text: `${key} ${ports}`.toLowerCase() });
}

function drop(key) {
  known.delete(key);
  names = null;
  version++;
}

// perSecond returns the recent rate of a counter.
export function perSecond(history, count) {
  const last = history.at(-1);
  const first = history.findLast(s => last.t - s.t >= 5000) ?? history[0];
  return !last || last.t === first.t ? 0 : (last[count] - first[count]) / (last.t - first.t) * 1000;
}

const states = Object.keys(serviceStates);
const orders = {
  state: (a, b) => states.indexOf(a.state) - states.indexOf(b.state),
  endpoints: (a, b) => a.endpoints.total - b.endpoints.total,
  active: (a, b) => a.totals.active - b.totals.active,
  accepted: (a, b) => a.totals.accepted - b.totals.accepted,
  retries: (a, b) => a.totals.retries - b.totals.retries,
  failed: (a, b) => a.totals.failed - b.totals.failed,
};
