// The live picture of the path: clients → portal → listener → endpoints.

import { h, morph } from './dom.js';
import { details, endpointsOf, pathOf as servicePath } from './details.js';
import { live } from './live.js';
import { clientKey, edge, endpointKey, layout, pathOf, serviceKey } from './layout.js';
import { Motion } from './motion.js';
import { name as shorten } from './marks.js';
import { endpointStates, plural, results, serviceStates, shortPod, stateOf } from './words.js';

const clientsShown = 4;
const markTime = 2600; // ms for which an endpoint shows the outcome of an attempt
const headings = [
  ['Clients', 'connect'],
  ['Portal', 'redirects them to usher'],
  ['Listener', 'accepts, picks an endpoint'],
  ['Endpoints', 'answer, or the next one is tried'],
];
const others = 'others'; // stands for clients and endpoints that are not drawn

export class Picture {
  node = h('div', { class: 'picture' });
  #canvas = h('svg', { class: 'canvas', 'aria-hidden': 'true', preserveAspectRatio: 'xMinYMin' }, h('g', { class: 'edges' }));
  #boxes = h('div', { class: 'boxes' });
  #clients = []; // the most recent is the last
  #marks = new Map();
  #places = new Map();
  #endpointsOf = new Map(); // the drawn endpoints, by Service
  #still = matchMedia('(prefers-reduced-motion: reduce)');

  // services returns the keys of the Services to draw, perService the number of
  // endpoints for each.
  constructor(services, perService) {
    this.services = services;
    this.perService = perService;
    this.motion = new Motion((a, b) => this.#curve(a, b), (key, text, tone) => this.#mark(key, text, tone));
    this.#canvas.append(this.motion.node);
    this.node.append(this.#boxes, this.#canvas);
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.node);
  }

  stop() {
    this.resized.disconnect();
    this.motion.hold();
    this.motion.clear();
  }

  // knows adds a client that connected before the picture was opened.
  // Call it for the most recent first.
  knows(client) {
    const host = hostOf(client);
    if (this.#clients.length < clientsShown && !this.#clients.includes(host)) this.#clients.unshift(host);
  }

  // step shows a step of a connection.
  step(e) {
    if (e.kind === 'accepted') this.#meet(hostOf(e.client));
    const drawn = this.#endpointsOf.get(e.service);
    if (!drawn || document.hidden) return;
    const endpoint = endpointKey(e.service, drawn.includes(e.endpoint) ? e.endpoint : others);
    const failed = e.result !== 'connected';
    const text = stateOf(results, e.result).word;
    if (this.#still.matches) {
      if (e.kind === 'attempt') this.#mark(endpoint, `${e.attempt} ${text}`, failed ? 'bad' : 'good');
      return;
    }
    switch (e.kind) {
      case 'accepted': return this.motion.accepted(e.connection, this.#clientPlace(e.client), serviceKey(e.service));
      case 'attempt': return this.motion.attempt(e.connection, endpoint, e.attempt, failed, text);
      case 'closed': return this.motion.closed(e.connection);
    }
  }

  #meet(client) {
    const known = this.#clients.includes(client);
    this.#clients = [...this.#clients.filter(c => c !== client), client].slice(-clientsShown);
    if (!known) this.draw();
  }

  #clientPlace(client) {
    const key = clientKey(hostOf(client));
    return this.#places.has(key) ? key : clientKey(others);
  }

  #mark(key, text, tone) {
    this.#marks.set(key, { text, tone, until: performance.now() + markTime });
    this.draw();
    setTimeout(() => this.draw(), markTime + 10);
  }

  #curve(a, b) {
    const from = this.#places.get(a), to = this.#places.get(b);
    return from && to && edge(from, to, this.narrow);
  }

  draw() {
    const width = this.node.clientWidth;
    if (width === 0) return; // not in the page yet
    const model = this.#model(width);
    const { height, narrow, columns, places } = layout(width, model);
    this.narrow = narrow;
    this.#places = places;
    for (const [key, mark] of this.#marks) if (mark.until < performance.now()) this.#marks.delete(key);
    this.#canvas.setAttribute('viewBox', `0 0 ${width} ${height}`);
    this.node.style.height = `${height}px`;
    morph(this.#canvas.querySelector('.edges'), this.#edges(model));
    morph(this.#boxes, [
      this.#headings(columns), this.#clientBoxes(model), this.#portalBox(), model.services.map(s => this.#serviceBoxes(s)),
    ]);
    if (live.paused) this.motion.hold();
    else this.motion.go();
  }

  #model(width) {
    this.#endpointsOf.clear();
    const services = this.services().map(key => {
      const all = endpointsOf(details.get(key)).map(e => e.address);
      const shown = all.length > this.perService ? [...all.slice(0, this.perService - 1), others] : all;
      this.#endpointsOf.set(key, shown);
      return { key, endpoints: shown, hidden: all.length - shown.length + 1 };
    });
    const known = [...this.#clients].sort();
    const clients = width < 700 || known.length === 0 ? [others] : known.length === clientsShown ? [...known.slice(1), others] : known;
    return { clients, services };
  }

  #edges({ clients, services }) {
    const line = (a, b, open) => {
      const curve = this.#curve(a, b);
      const tone = this.#marks.get(b)?.tone ?? '';
      return curve && h('path', { key: `${a} ${b}`, class: `edge ${open ? 'open' : ''} ${tone}`, d: pathOf(curve) });
    };
    return [
      clients.map(c => line(clientKey(c), 'portal')),
      services.map(({ key, endpoints }) => {
        const active = new Map(endpointsOf(details.get(key)).map(e => [e.address, e.active]));
        return [
          line('portal', serviceKey(key), [...active.values()].some(n => n > 0)),
          endpoints.map(e => line(serviceKey(key), endpointKey(key, e), active.get(e) > 0)),
        ];
      }),
    ];
  }

  #box(key, props, name, text) {
    const { x, y, w, h: height } = this.#places.get(key);
    return h(props.href ? 'a' : 'div', { key, ...props, class: `box ${props.class ?? ''}`,
      style: { left: `${x}px`, top: `${y}px`, width: `${w}px`, height: `${height}px` } }, h('b', null, shorten(name)), h('span', null, text));
  }

  #headings(columns) {
    return columns.map((x, i) => h('div', { key: `heading ${i}`, class: 'heading', style: { left: `${x}px` } },
      h('b', null, headings[i][0]), h('span', null, headings[i][1])));
  }

  #clientBoxes({ clients }) {
    const rest = this.#clients.length === 0 ? 'no client yet' : this.narrow ? 'Clients' : 'other clients';
    return clients.map(c => c === others
      ? this.#box(clientKey(c), { class: 'faint' }, rest, this.narrow ? this.#clients.join(', ') : '')
      : this.#box(clientKey(c), { title: c }, c, 'client'));
  }

  #portalBox() {
    const mode = live.status?.portalMode;
    return mode === 'none'
      ? this.#box('portal', { class: 'portal' }, 'no portal', 'clients use usher’s port')
      : this.#box('portal', { class: 'portal' }, mode ?? '', 'portal');
  }

  #serviceBoxes({ key, endpoints, hidden }) {
    const detail = details.get(key);
    const all = new Map(endpointsOf(detail).map(e => [e.address, e]));
    const state = detail ? stateOf(serviceStates, detail.state) : { tone: 'quiet' };
    const port = detail?.ports[0];
    return [
      this.#box(serviceKey(key), { class: state.tone, href: `#/service/${servicePath(key)}`, title: key },
        key.slice(key.indexOf('/') + 1),
        port ? `${port.vip} ${port.protocol}${detail.ports.length > 1 ? ` +${detail.ports.length - 1}` : ''}` : ''),
      endpoints.map(e => e === others
        ? this.#markedBox(endpointKey(key, e), 'quiet', plural(hidden, 'more endpoint'), 'open the Service to see them', '')
        : this.#endpointBox(key, all.get(e))),
    ];
  }

  #endpointBox(key, e) {
    const state = stateOf(endpointStates, e.state);
    const more = e.quarantine ? `: ${e.quarantine.cause}` : e.active > 0 ? `, ${e.active} open` : '';
    return this.#markedBox(endpointKey(key, e.address), state.tone, shortPod(e.pod, e.address), state.word + more, `${e.address} ${e.pod ?? ''}`);
  }

  // markedBox returns the box of an endpoint, with the last attempt's outcome for a while.
  #markedBox(key, tone, name, text, title) {
    const mark = this.#marks.get(key);
    return this.#box(key, { class: `endpoint ${mark ? `marked ${mark.tone}` : tone}`, title, 'data-mark': mark?.text },
      name, mark ? `attempt ${mark.text}` : text);
  }
}

// hostOf returns an address without its port.
function hostOf(address) { return address.slice(0, address.lastIndexOf(':')).replace(/^\[(.*)\]$/, '$1'); }
