// The page of one Service: its endpoints, addresses, rules, affinity and
// connections.

import { changesSoFar, get } from './api.js';
import { connections } from './connections.js';
import { details } from './details.js';
import { h } from './dom.js';
import { endpointList, waits } from './endpoints.js';
import { ExplainForm } from './explain.js';
import { live } from './live.js';
import { figure, stateMark, tableOr } from './marks.js';
import { Picture } from './picture.js';
import { rulesOf } from './rules.js';
import { services } from './services.js';
import { sparkline } from './sparkline.js';
import { tableOfConnections } from './table-of-connections.js';
import { bytes, clock, duration, number, plural, portName, seconds, serviceStates, shortPod, since, stateOf } from './words.js';

const endpointsDrawn = 12, changesShown = 8, clientsShown = 50, connectionsShown = 10;

export class OneService {
  latest = tableOfConnections('Latest connections', { ofOneService: true });
  picture = new Picture(() => details.get(this.key) ? [this.key] : [], endpointsDrawn);
  #changes = []; // the latest first
  #changesMissing = true; // those before the stream of events, or in a gap of it
  #connections = []; // of this Service; usher keeps more of them than this page knows
  #affinity = null;
  #portals = null;

  constructor(draw, namespace, name) {
    this.draw = draw;
    this.key = `${namespace}/${name}`;
    this.title = this.key;
    this.explain = new ExplainForm(draw, this.key);
  }

  start() {
    details.want(this, [this.key]);
    services.show([this.key]);
    for (const c of connections.newest(20, c => c.service === this.key)) this.picture.knows(c.client);
    details.refresh([this.key]).then(this.draw).catch(live.reports);
    this.#look();
    this.back();
  }

  stop() {
    details.want(this, []);
    services.show([]);
    this.picture.stop();
  }

  // look compares the rules with the kernel's.
  async #look() {
    try {
      const { rules, mode } = await get('portals');
      this.#portals = { mode, at: live.now(), rules: rules.filter(r => isOf(r.service ?? '', this.key)) };
    } catch { /* live reports it */ }
    this.draw();
  }

  // back requests what may have changed without an event. The rules have the time at
  // which they were compared.
  back() {
    this.#changesMissing = true;
    this.#request().then(this.draw);
  }

  missed() { this.#changesMissing = true; }

  restarted() {
    this.#changes = [];
    this.#connections = [];
    this.#affinity = null;
    this.#portals = null;
    this.#look();
    this.back();
  }

  tick() { this.#request().then(() => { if (!live.paused) this.draw(); }); }

  step(e) { if (e.service === this.key) this.picture.step(e); }

  change(e) {
    if (e.service !== this.key) return;
    this.#addChanges([e]);
    details.refresh([this.key]).then(this.draw).catch(live.reports);
  }

  #addChanges(changes) {
    const known = this.#changes.filter(k => !changes.some(c => c.id === k.id));
    this.#changes = [...changes.toReversed(), ...known].sort((a, b) => Date.parse(b.time) - Date.parse(a.time)).slice(0, changesShown);
  }

  // request does not report failures, which live does. The next tick repeats it.
  async #request() {
    const of = { service: this.key };
    const requests = [get('connections', { ...of, state: 'all', limit: connectionsShown }).then(list => { this.#connections = list.items; })];
    if (this.#changesMissing) requests.push(this.#requestChanges());
    const detail = details.get(this.key);
    if (!detail || detail.affinitySeconds > 0) requests.push(get('affinity', { ...of, limit: clientsShown }).then(list => { this.#affinity = list; }));
    await Promise.allSettled(requests);
  }

  async #requestChanges() {
    this.#changesMissing = false;
    try {
      this.#addChanges(await changesSoFar(this.key));
    } catch {
      this.#changesMissing = true;
    }
  }

  // newest returns the latest connections that usher has kept or that this page knows.
  #newest() {
    const known = connections.newest(connectionsShown, c => c.service === this.key);
    const kept = this.#connections.filter(k => !known.some(c => c.id === k.id));
    return [...known, ...kept].sort((a, b) => b.id - a.id).slice(0, connectionsShown);
  }

  render() {
    const detail = details.get(this.key);
    const crumbs = h('p', { class: 'crumbs' }, h('a', { href: '#/' }, 'Services'), ' / ', this.key.slice(0, this.key.indexOf('/')));
    if (!detail) {
      const text = detail === undefined ? 'Reading …' : 'usher serves no Service of this name. It was deleted, or belongs to another proxy.';
      return [crumbs, h('h1', null, this.key), h('div', { class: 'card empty' }, h('p', null, text), h('a', { href: '#/' }, 'All Services'))];
    }
    this.latest.rows = this.#newest();
    return [
      crumbs,
      h('h1', null, detail.name, ' ', stateMark(stateOf(serviceStates, detail.state))),
      h('p', { class: 'lead' }, stateInWords(detail), detail.since && h('span', { class: 'quiet' }, ` (${since(detail.since)})`)),
      detail.problems?.map(p => h('p', { key: p.message, class: 'bad' }, `${p.reason}: ${p.message}`)),
      detail.latency && h('p', { key: 'latency', class: 'quiet' }, waits(detail.latency)),
      this.#numbers(detail),
      h('div', { own: this.picture, class: 'card picture-card', role: 'group', 'aria-label': 'The path of connections to this Service' }),
      detail.details.map(p => this.#port(p, detail.details.length)),
      detail.ports.length > 0 && this.explain.render(detail),
      detail.affinitySeconds > 0 && this.#affinitySection(detail.affinitySeconds),
      h('section', { key: 'connections', 'aria-labelledby': 'latest' },
        h('h2', { id: 'latest' }, 'Latest connections'),
        tableOr(this.latest, 'usher has no connection to this Service on record.'),
        detail.ends && h('p', { class: 'quiet' }, endsInWords(detail.ends))),
      this.#changesSection(),
    ];
  }

  drawn() {
    if (!details.get(this.key)) return;
    this.picture.draw();
    if (this.latest.rows.length > 0) this.latest.draw();
  }

  #numbers({ totals, ends, latency: l }) {
    const history = services.get(this.key)?.history ?? [];
    const curve = history.length > 1 && sparkline(history, ['accepted', 'retries']);
    return h('dl', { class: 'numbers' },
      figure('open', number(totals.active), { more: totals.queued > 0 && `${number(totals.queued)} queued` }),
      figure('connections', number(totals.accepted), { more: curve }),
      figure('retries', number(totals.retries), { tone: totals.retries > 0 && 'warn' }),
      figure('failed', number(totals.failed), { tone: totals.failed > 0 && 'bad' }),
      ends?.['no-response'] > 0 && figure('without a response', number(ends['no-response']), { tone: 'warn' }),
      l && figure('to connect, p99', duration(l.connectP99Ms)),
      l?.firstByteP99Ms > 0 && figure('to first byte, p99', duration(l.firstByteP99Ms)),
      figure('to endpoints', bytes(totals.bytesToEndpoint)),
      figure('to clients', bytes(totals.bytesToClient)));
  }

  #port(port, ports) {
    const name = `Port ${portName(port)}, ${port.family}`;
    return h('section', { key: `${name} ${port.vip}`, class: 'card', 'aria-label': name },
      h('h2', null, ports > 1 ? `${name}: endpoints` : 'Endpoints'),
      port.dropped?.map(d => h('p', { key: d.clients, class: d.clients === 'internal' ? 'bad' : 'warn' }, `The port does not serve ${d.clients} clients: ${d.text}.`)),
      port.problem && h('p', { key: 'problem', class: 'bad' }, `This port has a problem. ${port.problem.message}`),
      endpointList(port.endpoints),
      h('h3', null, 'Addresses and rules'),
      h('p', { class: 'quiet' }, policyWords(port)),
      rulesOf(port, this.#portals, () => this.#look()));
  }

  #affinitySection(timeout) {
    const list = this.#affinity;
    return h('section', { key: 'affinity', class: 'card', 'aria-labelledby': 'affinity' },
      h('h2', { id: 'affinity' }, 'Session affinity'),
      h('p', { class: 'quiet' }, 'A client keeps its endpoint until it has made no new connection for ',
        `${seconds(timeout)} or the endpoint fails.`),
      list?.items.length > 0 ? rememberedClients(list.items)
        : h('p', { class: 'empty' }, list ? 'No client has affinity yet; it starts with a client’s first connection.' : 'Reading …'),
      list?.total > clientsShown && h('p', { class: 'quiet' }, `and ${plural(list.total - clientsShown, 'more client')}`));
  }

  #changesSection() {
    const line = c => h('li', { key: c.id }, h('time', { class: 'mono', datetime: c.time }, clock(c.time)), h('span', null, c.text));
    return h('section', { key: 'changes', class: 'card', 'aria-labelledby': 'changes' },
      h('h2', { id: 'changes' }, 'Changes'),
      this.#changes.length > 0 ? h('ol', { class: 'changes' }, this.#changes.map(line))
        : h('p', { class: 'empty' }, 'No changes on record.'));
  }
}

function rememberedClients(items) {
  const heading = text => h('th', { scope: 'col' }, text);
  return h('table', { class: 'plain' },
    h('thead', null, h('tr', null, heading('Client'), heading('Endpoint'), heading('Remaining time'))),
    h('tbody', null, items.map(a => h('tr', { key: `${a.client} ${a.port} ${a.protocol}` },
      h('th', { scope: 'row', class: 'mono' }, a.client),
      h('td', null, shortPod(a.pod, a.endpoint)),
      h('td', null, seconds(a.secondsLeft))))));
}

// isOf reports whether a service port, as rules name it, belongs to a Service.
function isOf(port, service) { return port === service || port.startsWith(`${service}:`) || port.startsWith(`${service}/`); }

// stateInWords describes a Service's state in a sentence.
function stateInWords({ state, endpoints: e }) {
  const others = [[e.outlier, e.outlier === 1 ? 'outlier' : 'outliers'], [e.unresponsive, 'unresponsive'], [e.quarantined, 'in quarantine'], [e.terminating, 'terminating'], [e.notReady, 'not ready']];
  const rest = others.filter(([n]) => n > 0).map(([n, what]) => `${n} ${what}`).join(', ');
  const [are, those] = e.ready === 1 ? ['is', 'that one'] : ['are', 'those'];
  switch (state) {
    case 'ok':
      return e.total === 1 ? 'Its one endpoint is ready.' : e.total === 2 ? 'Both endpoints are ready.' : `All ${e.total} endpoints are ready.`;
    case 'degraded':
      return `${e.ready} of ${plural(e.total, 'endpoint')} ${are} ready (${rest}); new connections go to ${those}${e.outlier + e.unresponsive > 0 ? ', and also to outliers and unresponsive ones' : ''}.`;
    case 'down':
      return `No endpoint of a port is healthy (all: ${rest}). usher tries them anyway: one may have recovered.`;
    case 'no-endpoints':
      return 'A port has no usable endpoint: its clients are refused at once.';
    case 'no-local-endpoints':
      return 'No usable endpoint is on this node, and internalTrafficPolicy is Local: clients of the cluster IP are not served.';
    case 'no-local-endpoints-external':
      return 'No usable endpoint is on this node, and externalTrafficPolicy is Local: external clients are not served here, and must use another node. All other clients are served.';
    case 'problem':
      return 'A port of this Service has a problem; see below.';
  }
  return '';
}

function policyWords({ policies: { internal, external }, settings, proxyProtocol: { toEndpoints, from } = {}, topology }) {
  const where = policy => policy === 'Local' ? 'on this node only' : 'on every node';
  const outside = internal === external ? 'So do clients from outside.' : `Clients from outside get endpoints ${where(external)}.`;
  const proxySent = toEndpoints ? ` Endpoints get the client’s address by the PROXY protocol, ${toEndpoints}.` : '';
  const proxyAccepted = from ? ` Load balancers in ${from.join(', ')} send its headers to usher.` : '';
  const near = topology ? ` Of those on every node, these count: ${topology.text}.` : '';
  const list = Object.entries(settings ?? {}).map(([name, text]) => `${name} ${text}`).join(', ');
  return `Clients in the cluster get endpoints ${where(internal)}. ${outside}${near}${proxySent}${proxyAccepted} Settings: ${list}.`;
}

// endsInWords counts connections by end code, most frequent first.
function endsInWords(counts) {
  const list = Object.entries(counts).toSorted(([, a], [, b]) => b - a).map(([end, n]) => `${number(n)} ${end}`);
  return `Ended so far: ${list.join(', ')}.`;
}
