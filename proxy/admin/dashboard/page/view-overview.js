// The first page: current activity, and all Services.

import { connections } from './connections.js';
import { demo } from './demo.js';
import { details, pathOf } from './details.js';
import { h } from './dom.js';
import { live } from './live.js';
import { choice, figure, searchField, tableOr } from './marks.js';
import { Picture } from './picture.js';
import { perSecond, services } from './services.js';
import { sparkline } from './sparkline.js';
import { tableOfConnections } from './table-of-connections.js';
import { serviceColumns } from './table-of-services.js';
import { Table } from './table.js';
import { duration, number, plural, portalWords, rate, serviceStates } from './words.js';

const servicesDrawn = 4, endpointsDrawn = 3;
const quietTime = 8000; // ms without a step after which another Service may replace one in the picture
const samples = 60; // of the totals: two minutes
const attention = ['rejected', 'problem', 'down', 'no-local-endpoints', 'no-endpoints', 'degraded'];

export class Overview {
  title = 'Overview';
  picture = new Picture(() => this.#drawn, endpointsDrawn);
  latest = tableOfConnections('Latest connections');
  table = new Table({
    caption: 'Services',
    name: 'services',
    columns: serviceColumns,
    key: s => s.key,
    href: s => `#/service/${pathOf(s.key)}`,
    onSort: by => this.#sortBy(by),
  });
  #drawn = []; // the Services in the picture
  #lastStep = new Map(); // its time, by key of the Service
  #totals = []; // the history of all Services together
  #leftOut = 0; // connections that were not drawn in the last seconds
  #q = '';
  #states = null;

  constructor(draw) {
    this.draw = draw;
    this.table.sort = { by: 'name', descending: false };
  }

  start() {
    this.table.start();
    for (const c of connections.newest(20)) this.picture.knows(c.client);
  }

  stop() {
    this.table.stop();
    this.picture.stop();
    details.want(this, []);
    services.show([]);
  }

  step(e) {
    this.#lastStep.set(e.service, performance.now());
    if (!this.#drawn.includes(e.service)) this.#choose();
    this.picture.step(e);
  }

  tick(status) {
    const { accepted, failed, retries } = status.totals;
    this.#totals.push({ t: live.now(), accepted, failed, retries });
    if (this.#totals.length > samples) this.#totals.shift();
    this.#leftOut = this.picture.motion.takeLeftOut();
    this.#choose();
    services.show(this.table.visible().map(s => s.key));
    if (this.#q) services.find(this.#q).catch(live.reports); // the next drawing has the result
  }

  restarted() { this.#totals = []; }

  // choose selects Services with recent connections, each at a fixed position;
  // without any, those that need attention.
  #choose() {
    const now = performance.now();
    const busy = key => now - (this.#lastStep.get(key) ?? -Infinity) < quietTime;
    const waiting = [...this.#lastStep.keys()].filter(k => busy(k) && !this.#drawn.includes(k) && services.get(k));
    let drawn = this.#drawn.filter(k => services.get(k) || !services.complete);
    if (drawn.length < servicesDrawn) {
      const all = services.list({ q: '', sort: 'state' });
      const rest = [...all.filter(s => s.endpoints.total > 1), ...all].map(s => s.key);
      drawn = [...new Set([...drawn, ...waiting, ...rest])].slice(0, servicesDrawn);
    }
    for (const key of waiting) {
      const quiet = drawn.findIndex(k => !busy(k));
      if (!drawn.includes(key) && quiet >= 0) drawn[quiet] = key;
    }
    if (drawn.join() === this.#drawn.join()) return;
    this.#drawn = drawn;
    details.want(this, drawn);
    details.refresh(drawn.filter(k => !details.get(k))).then(() => this.picture.draw()).catch(live.reports);
  }

  #sortBy(by) {
    const { sort } = this.table;
    const descending = sort.by === by ? !sort.descending : by !== 'name' && by !== 'state';
    this.table.sort = { by, descending };
    this.draw();
  }

  // search shows matches in this page at once, and usher's matches a little later.
  #search(q) {
    this.#q = q;
    this.draw();
    clearTimeout(this.finding);
    this.finding = setTimeout(() => services.find(q).then(this.draw).catch(live.reports), 200);
  }

  #choice(text, states, tone) {
    const choose = () => {
      this.#states = states;
      this.draw();
    };
    return choice(String(states), text, String(this.#states) === String(states), choose, tone);
  }

  render() {
    const { by: sort, descending } = this.table.sort;
    this.table.rows = services.list({ q: this.#q, states: this.#states, sort, descending });
    this.latest.rows = connections.newest(6);
    return [this.#now(), demo.panel(), this.#latestConnections(), this.#allServices()];
  }

  drawn() {
    this.picture.draw();
    this.table.draw();
    if (this.latest.rows.length > 0) this.latest.draw();
  }

  #now() {
    return h('section', { class: 'now', 'aria-labelledby': 'now' },
      h('h1', { id: 'now' }, 'What happens now'),
      h('p', { class: 'lead' }, portalWords(live.status?.portalMode),
        ' usher accepts each connection, tries one endpoint after the other until it can connect to one, and then forwards the bytes.'),
      live.status?.problems.length > 0 && h('p', { class: 'bad', title: live.status.problems.map(p => `${p.object}: ${p.message}`).slice(0, 10).join('\n') }, live.status.attention),
      h('dl', { class: 'numbers' }, live.status && this.#numbers(live.status)),
      h('div', { own: this.picture, class: 'card picture-card', role: 'group',
        'aria-label': 'The path of connections: clients, portal, listener, endpoints' }),
      this.#leftOut > 0 && h('p', { key: 'left out', class: 'quiet left-out' },
        `${plural(this.#leftOut, 'more connection')} in the last seconds: too many to draw.`));
  }

  #numbers({ totals, connections: open, udpSessions: sessions, started, now }) {
    const counted = this.#totals;
    const curve = count => counted.length > 1 && sparkline(counted, [count]);
    const retries = perSecond(counted, 'retries');
    const since = duration(Date.parse(now) - Date.parse(started));
    return [
      figure('open connections', number(open.now), { more: `of at most ${number(open.limit)}` }),
      sessions.now > 0 && figure('open UDP sessions', number(sessions.now), { more: `of at most ${number(sessions.limit)}` }),
      figure('new connections', rate(perSecond(counted, 'accepted')), { more: curve('accepted') }),
      figure('retries', rate(retries), { more: curve('retries'), tone: retries > 0 && 'warn' }),
      figure('failed connections', number(totals.failed),
        { more: `of ${number(totals.accepted)} since ${since}`, tone: totals.failed > 0 && 'bad' }),
    ];
  }

  #latestConnections() {
    return h('section', { 'aria-labelledby': 'latest' },
      h('div', { class: 'section-head' },
        h('h2', { id: 'latest' }, 'Latest connections'),
        connections.size > 0 && h('a', { href: '#/connections' }, 'All known connections')),
      tableOr(this.latest, 'No client has connected yet.', howToConnect()));
  }

  #allServices() {
    const counts = services.counts();
    const needs = attention.reduce((sum, s) => sum + counts[s], 0);
    return h('section', { class: 'all', 'aria-labelledby': 'services' },
      h('div', { class: 'section-head' },
        h('h2', { id: 'services' }, 'Services'),
        searchField('Find a Service', 'Name, port, address or Pod', q => this.#search(q))),
      h('div', { class: 'filters', role: 'group', 'aria-label': 'Show' },
        this.#choice(`All ${number(services.size)}`, null),
        needs > 0 && this.#choice(`Need attention ${number(needs)}`, attention),
        attention.filter(s => counts[s] > 0).map(s => {
          const { mark, word, tone } = serviceStates[s];
          return this.#choice(`${mark} ${word} ${number(counts[s])}`, [s], tone);
        }),
        this.#sortOrders()),
      h('p', { class: 'unseen', role: 'status' }, services.complete ? plural(this.table.rows.length, 'Service') : ''),
      tableOr(this.table, noServices()));
  }

  // sortOrders is for phones, where the table has no headings.
  #sortOrders() {
    return h('label', { class: 'sort' }, 'Sort by ', h('select', { onchange: e => this.#sortBy(e.target.value) },
      serviceColumns.filter(c => c.sort).map(({ sort, title }) =>
        h('option', { value: sort, selected: sort === this.table.sort.by }, title))));
  }
}

function noServices() {
  if (!services.complete) return 'Reading the Services …';
  if (services.size > 0) return 'No Service matches. Search for another word, or show all.';
  return 'usher serves no Service yet. In a cluster it serves Services as soon as they exist; '
    + 'with --manifests, as soon as a file in that folder has one.';
}

// howToConnect shows a command that makes a connection.
function howToConnect() {
  const port = services.all().flatMap(s => s.ports).find(p => p.protocol === 'TCP' && p.listener);
  if (!port) return null;
  const at = live.status?.portalMode === 'none' ? port.listener : port.vip;
  return h('p', null, 'Make a connection on this node and watch it here: ',
    h('code', null, `curl http://${at.replace(/:80$/, '')}/`));
}
