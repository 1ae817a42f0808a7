// The first page of a cluster: the Services over all nodes, worst first, and the nodes.

import { get } from './api.js';
import { h } from './dom.js';
import { count, figure, name, searchField, stateMark, tableOr } from './marks.js';
import { Table } from './table.js';
import { duration, number, plural, serviceStates, short, stateOf } from './words.js';

export const timeout = 40_000; // ms: each usher has 5 s to respond, and there may be hundreds
const silentNamed = 5;

const nodeStates = {
  well: { mark: '✓', word: 'no problems', means: 'usher responds and reports no problem', tone: 'good' },
  problems: { mark: '~', word: 'problems', means: 'usher responds and reports problems', tone: 'warn' },
  silent: { mark: '✗', word: 'no response', means: 'usher does not respond', tone: 'bad' },
};

const serviceColumns = [
  { name: 'service', title: 'Service', cell: s => [name(`${s.namespace}/`, 'namespace'), name(s.name)] },
  { name: 'state', title: 'State', cell: s => stateMark(stateOf(serviceStates, s.state), s.message) },
  { name: 'nodes', title: 'On nodes', cell: s => `${short(s.states[s.state])} of ${short(s.nodeCount)}` },
  { name: 'endpoints', title: 'Endpoints', cell: s => count(s.endpointCount) },
  { name: 'total', title: 'Connections', cell: s => count(s.totals.accepted) },
  { name: 'retries', title: 'Retries', cell: s => count(s.totals.retries, 'warn') },
  { name: 'failed', title: 'Failed', cell: s => count(s.totals.failed, 'bad') },
  { name: 'wait', title: 'Connect, p99', cell: s => s.connectP99Ms ? duration(s.connectP99Ms) : h('span', { class: 'quiet' }, '–') },
];

const nodeColumns = [
  { name: 'service', title: 'Node', cell: n => name(n.name) },
  { name: 'state', title: 'State', cell: nodeState },
  { name: 'attention', title: 'Report', cell: n => name(n.error ?? n.attention, n.error ? 'bad' : n.problems ? 'said' : 'quiet') },
  { name: 'total', title: 'Connections', cell: n => count(n.totals?.accepted) },
  { name: 'retries', title: 'Retries', cell: n => count(n.totals?.retries, 'warn') },
  { name: 'failed', title: 'Failed', cell: n => count(n.totals?.failed, 'bad') },
];

export class ClusterOverview {
  title = 'Overview';
  services = new Table({
    caption: 'Services, the worst first', name: 'services over-nodes', columns: serviceColumns,
    key: s => `${s.namespace}/${s.name}`, href: s => `#/service/${encodeURIComponent(s.namespace)}/${encodeURIComponent(s.name)}`,
  });
  nodes = new Table({
    caption: 'Nodes', name: 'services of-nodes', columns: nodeColumns,
    key: n => n.name, href: n => `nodes/${encodeURIComponent(n.name)}/`,
  });
  #q = '';
  #list = null; // the API's ClusterServiceList
  #fleet = null; // ClusterNodeList
  #total = 0; // Services

  start() {
    this.services.start();
    this.nodes.start();
  }

  stop() {
    this.services.stop();
    this.nodes.stop();
  }

  async load() {
    const q = this.#q;
    const [fleet, list] = await Promise.all([get('cluster/nodes', {}, timeout), get('cluster/services', { q }, timeout).catch(err => err)]);
    this.#fleet = fleet;
    if (list instanceof Error) {
      if (fleet.items.every(n => n.error)) this.#list = null; // the table of nodes shows the errors
      else throw list;
      return;
    }
    if (q !== this.#q) return;
    this.#list = list;
    if (!q) this.#total = list.total;
  }

  #search(q) {
    this.#q = q;
    clearTimeout(this.finding);
    this.finding = setTimeout(() => dispatchEvent(new Event('search-changed')), 250);
  }

  render() {
    if (!this.#fleet) return [h('h1', null, 'Cluster'), h('div', { class: 'card empty' }, h('p', null, 'Querying usher on all nodes …'))];
    this.services.rows = this.#list?.items ?? [];
    const trouble = n => n.error ? 2 : n.problems > 0 ? 1 : 0;
    this.nodes.rows = this.#fleet.items.toSorted((a, b) => trouble(b) - trouble(a));
    const silent = this.nodes.rows.filter(n => n.error);
    return [
      h('h1', null, 'Cluster'),
      h('p', { class: 'lead' }, 'Is it the Pod, or is it the node? Each Service’s page has a table of its endpoints by the nodes that connect to them.'),
      silent.length > 0 && h('p', { key: 'silent', class: 'bad', role: 'alert' }, silentNodes(silent)),
      this.#numbers(),
      h('section', { key: 'services', class: 'all', 'aria-labelledby': 'services' },
        h('div', { class: 'section-head' },
          h('h2', { id: 'services' }, 'Services, the worst first'),
          searchField('Find Services', 'Name, address or Pod', q => this.#search(q))),
        tableOr(this.services, !this.#list ? 'No usher instance responds.' : this.#q ? 'No Service matches.' : 'usher serves no Service yet.'),
        h('p', { class: 'quiet left-out', role: 'status' }, this.#list && this.#howMany())),
      h('section', { key: 'nodes', 'aria-labelledby': 'nodes' },
        h('h2', { id: 'nodes' }, 'Nodes'),
        tableOr(this.nodes, 'No node runs usher.'),
        h('p', { class: 'quiet left-out' }, 'The row of a node links to the page of usher there.')),
    ];
  }

  drawn() {
    for (const table of [this.services, this.nodes]) if (table.rows.length > 0) table.draw();
  }

  #howMany() {
    const { total, items } = this.#list;
    if (total <= items.length) return plural(total, 'Service');
    return this.#q ? `${number(items.length)} of ${plural(total, 'Service')} that match: another word finds fewer.`
      : `${number(items.length)} of ${plural(total, 'Service')}: those with problems or failures, and then those with the most connections. The search finds the others.`;
  }

  #numbers() {
    const { items } = this.#fleet;
    const there = items.filter(n => !n.error);
    const sum = count => there.reduce((n, { totals }) => n + totals[count], 0);
    const failed = sum('failed');
    return h('dl', { class: 'numbers' },
      figure('nodes', number(items.length), { more: there.length < items.length ? `${number(there.length)} respond` : 'all respond' }),
      figure('Services', number(this.#total)),
      figure('open connections', number(sum('active'))),
      figure('connections', number(sum('accepted'))),
      figure('retries', number(sum('retries'))),
      figure('failed', number(failed), { tone: failed > 0 && 'bad' }));
  }
}

// silentNodes lists the nodes whose usher does not respond, with the errors.
function silentNodes(silent) {
  const named = silent.slice(0, silentNamed).map(n => `${n.name} (${n.error})`).join(', ');
  const more = silent.length > silentNamed ? ` and ${number(silent.length - silentNamed)} more` : '';
  return `No usher instance responds on ${silent.length === 1 ? 'the node' : plural(silent.length, 'node') + ':'} ${named}${more}. ${silent.length === 1 ? 'It is' : 'They are'} not included here.`;
}

function nodeState(n) {
  if (n.error) return stateMark(nodeStates.silent);
  return n.problems ? stateMark({ ...nodeStates.problems, word: plural(n.problems, 'problem') }) : stateMark(nodeStates.well);
}
