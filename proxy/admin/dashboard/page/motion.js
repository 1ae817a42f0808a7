// Connections that move through the picture as dots. A dot shows the number of its
// attempt; when the attempt fails, it returns to the listener, and goes to the next
// endpoint.
//
// The steps of a connection are often less than a millisecond apart; the animation
// of each takes longer, so that dots are a second or two behind.

import { along } from './layout.js';
import { h } from './dom.js';

const most = 40; // dots at a time; further connections are counted
const ms = { way: 420, attempt: 520, failed: 420, back: 360, arrived: 320 };
const timeout = 15_000; // ms after its last step until a dot is removed

export class Motion {
  node = h('g', { class: 'dots' });
  #leftOut = 0;
  #journeys = new Map();
  #frame = 0;
  #last = 0;

  // curve(from, to) returns the curve between two positions, undefined if one is
  // not in the picture. mark(place, text, tone) shows the outcome of an attempt.
  constructor(curve, mark) {
    this.curve = curve;
    this.mark = mark;
  }

  // accepted starts a dot at a client, by way of the portal.
  accepted(id, client, service) {
    if (this.#journeys.size >= most) {
      this.#leftOut++;
      return;
    }
    const dot = h('g', { class: 'dot', 'data-connection': id }, h('circle', { r: 9 }), h('text', { dy: '0.35em' }));
    this.node.append(dot);
    const j = { dot, legs: [], service, client, quiet: 0 };
    this.#journeys.set(id, j);
    this.#go(j, { from: client, to: 'portal', ms: ms.way }, { from: 'portal', to: service, ms: ms.way });
  }

  attempt(id, endpoint, number, failed, text) {
    const j = this.#journeys.get(id);
    if (!j) return;
    const way = { from: j.service, to: endpoint, number };
    const tone = failed ? 'bad' : 'good';
    const begin = () => this.mark(endpoint, `${number} ${text}`, tone);
    this.#go(j, { ...way, ms: ms.attempt }, { ...way, tone, still: 1, ms: failed ? ms.failed : ms.arrived, begin });
    if (failed) this.#go(j, { ...way, tone, back: true, ms: ms.back });
    else j.over = true;
  }

  // closed returns the dot of a connection without an endpoint to the client.
  closed(id) {
    const j = this.#journeys.get(id);
    if (!j || j.over) return;
    j.over = true;
    const way = { back: true, ms: ms.way, tone: 'bad' };
    this.#go(j, { ...way, from: 'portal', to: j.service }, { ...way, from: j.client, to: 'portal' });
  }

  // takeLeftOut returns how many connections got no dot since its last call.
  takeLeftOut() {
    const n = this.#leftOut;
    this.#leftOut = 0;
    return n;
  }

  clear() {
    this.#journeys.clear();
    this.node.replaceChildren();
  }

  hold() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
  }

  go() {
    if (this.#frame || this.#journeys.size === 0) return;
    this.#last = performance.now();
    this.#frame = requestAnimationFrame(now => this.#step(now));
  }

  #go(journey, ...legs) {
    journey.legs.push(...legs);
    journey.quiet = 0;
    this.go();
  }

  #step(now) {
    const passed = Math.min(100, now - this.#last);
    this.#last = now;
    this.#frame = 0;
    for (const [id, j] of this.#journeys) {
      if (this.#advance(j, passed)) continue;
      j.dot.remove();
      this.#journeys.delete(id);
    }
    if (this.#journeys.size > 0) this.#frame = requestAnimationFrame(t => this.#step(t));
  }

  // advance moves a dot. It returns false if the dot has arrived.
  #advance(j, passed) {
    const leg = j.legs[0];
    if (!leg) {
      j.quiet += passed;
      return !j.over && j.quiet < timeout;
    }
    const curve = this.curve(leg.from, leg.to);
    if (!curve) return false;
    if (leg.done === undefined) {
      leg.done = 0;
      leg.begin?.();
      j.dot.setAttribute('class', `dot ${leg.tone ?? ''}`);
      if (leg.number) j.dot.setAttribute('data-attempt', leg.number);
      j.dot.lastChild.textContent = leg.number ?? '';
    }
    leg.done += passed;
    const t = Math.min(1, leg.done / leg.ms);
    const eased = leg.still ?? t * t * (3 - 2 * t);
    const [x, y] = along(curve, leg.back ? 1 - eased : eased);
    j.dot.setAttribute('transform', `translate(${x.toFixed(1)} ${y.toFixed(1)})`);
    if (t === 1) j.legs.shift();
    return true;
  }
}
