// Details of the few Services that are on the screen.

import { get } from './api.js';

const known = new Map();
let wanted = new Map(); // by the part of the page that shows them

export const details = {
  // want sets which Services a part of the page needs from now on.
  want(who, keys) {
    wanted.set(who, keys);
    if (keys.length === 0) wanted.delete(who);
    for (const key of known.keys()) if (!this.wanted().has(key)) known.delete(key);
  },

  wanted() { return new Set([...wanted.values()].flat()); },

  // get returns the API's ServiceDetail, null if there is no such Service, or
  // undefined while that is unknown.
  get(key) { return known.get(key); },

  forget() { known.clear(); },

  async refresh(keys = [...this.wanted()]) {
    await Promise.all(keys.map(async key => {
      try {
        known.set(key, await get(`services/${pathOf(key)}`));
      } catch (err) {
        if (err.status !== 404) throw err;
        known.set(key, null);
      }
    }));
  },
};

// pathOf returns namespace/name, escaped for a path.
export function pathOf(key) {
  const slash = key.indexOf('/');
  return `${encodeURIComponent(key.slice(0, slash))}/${encodeURIComponent(key.slice(slash + 1))}`;
}

// endpointsOf returns a Service's endpoints, each address once, sorted by Pod.
export function endpointsOf(detail) {
  const out = new Map();
  for (const port of detail?.details ?? []) for (const e of port.endpoints) if (!out.has(e.address)) out.set(e.address, e);
  return [...out.values()].sort(byPod);
}

// byPod compares numbers in names by value: web-2 before web-10.
export function byPod(a, b) { return (a.pod ?? a.address).localeCompare(b.pod ?? b.address, 'en', { numeric: true }); }
