// A Service over all nodes: its endpoints by the nodes that connect to them. A red row indicates a failed
// Pod, a red column a failed node.

import { get } from './api.js';
import { pathOf } from './details.js';
import { h } from './dom.js';
import { figure, name, stateMark } from './marks.js';
import { timeout } from './view-cluster.js';
import { capital, duration, endpointStates, number, plural, serviceStates, short, shortPod, stateOf } from './words.js';

const faults = {
  pod: { mark: '↔', word: 'the Pod', tone: 'bad' },
  node: { mark: '↕', word: 'the node', tone: 'bad' },
  path: { mark: '+', word: 'one way', tone: 'warn' },
  all: { mark: '✗', word: 'everything', tone: 'bad' },
  unclear: { mark: '?', word: 'not enough connections to judge', tone: 'warn' },
};

export class ClusterService {
  #detail; // the API's ClusterServiceDetail; null if there is no such Service

  constructor(draw, namespace, name) {
    this.key = `${namespace}/${name}`;
    this.title = this.key;
  }

  start() {}
  stop() {}
  drawn() {}

  async load() {
    try {
      this.#detail = await get(`cluster/services/${pathOf(this.key)}`, {}, timeout);
    } catch (err) {
      if (err.status !== 404) throw err;
      this.#detail = null;
    }
  }

  render() {
    const s = this.#detail;
    const crumbs = h('p', { class: 'crumbs' }, h('a', { href: '#/' }, 'Cluster'), ' / ', this.key.slice(0, this.key.indexOf('/')));
    if (!s) {
      const text = s === undefined ? 'Querying usher on all nodes …' : 'No usher instance serves a Service of this name.';
      return [crumbs, h('h1', null, this.key), h('div', { class: 'card empty' }, h('p', null, text))];
    }
    return [
      crumbs,
      h('h1', null, s.name, ' ', stateMark(stateOf(serviceStates, s.state), s.message)),
      h('p', { class: 'lead' }, this.#onHowMany(s)),
      h('ul', { class: 'findings', role: 'status' }, findings(s)),
      h('section', { key: 'matrix', 'aria-labelledby': 'matrix' },
        h('h2', { id: 'matrix' }, 'Endpoints by node'),
        s.endpoints.length > 0 ? matrix(s, this.key) : h('div', { class: 'card empty' }, h('p', null, 'No endpoints.')),
        h('p', { class: 'quiet left-out' }, 'A red row is an endpoint that fails for all nodes that connect to it. A red column is a node for which endpoints fail that other nodes reach. ',
          'Each cell has how many of the node’s attempts and connections failed in the last 5 to 10 minutes, of how many, and how long all but one in a hundred of its clients waited to be connected.'),
        h('p', { class: 'quiet left-out' }, leftOut(s))),
      h('section', { key: 'totals', 'aria-labelledby': 'totals' },
        h('h2', { id: 'totals' }, 'All nodes together'),
        h('dl', { class: 'numbers' },
          figure('open', number(s.totals.active)),
          figure('connections', number(s.totals.accepted)),
          figure('retries', number(s.totals.retries), { tone: s.totals.retries > 0 && 'warn' }),
          figure('failed', number(s.totals.failed), { tone: s.totals.failed > 0 && 'bad' }))),
    ];
  }

  #onHowMany({ states, state, nodeCount: nodes }) {
    const { word } = stateOf(serviceStates, state);
    if (states[state] === nodes) return nodes === 1 ? `On one node: ${word}.` : `On all ${plural(nodes, 'node')}: ${word}.`;
    const words = Object.entries(states).toSorted(([, a], [, b]) => b - a).map(([state, n]) => `${stateOf(serviceStates, state).word} on ${number(n)}`);
    return capital(`${words.join(', ')} of ${plural(nodes, 'node')}.`);
  }
}

function findings(s) {
  if (s.findings.length === 0) {
    const tried = s.endpoints.some(e => e.good > 0);
    return h('li', { class: tried ? 'good' : 'quiet' }, h('b', { 'aria-hidden': 'true' }, tried ? '✓' : '?'),
      h('span', null, tried ? 'No endpoint fails for a node that connects to it.' : 'There were not enough connections recently to judge the endpoints.'));
  }
  return [
    s.findings.map(f => {
      const { mark, tone } = stateOf(faults, f.fault);
      return h('li', { class: tone }, h('b', { 'aria-hidden': 'true' }, mark), h('span', null, f.text));
    }),
    s.findingsOmitted > 0 && h('li', { class: 'quiet' }, `and ${number(s.findingsOmitted)} more`),
  ];
}

function leftOut(s) {
  const parts = [];
  if (s.endpointsOmitted) parts.push(plural(s.endpointsOmitted, 'more endpoint'));
  if (s.nodesOmitted) parts.push(plural(s.nodesOmitted, 'more node'));
  const more = parts.length > 0 ? `${parts.join(' and ')} are not shown: none has more failures than those above. ` : '';
  return s.nodesUnasked ? `${more}${plural(s.nodesUnasked, 'node')} were not queried, since there are too many endpoints and nodes; those with the most failures and connections were.` : more;
}

function matrix(s, key) {
  return h('div', { class: 'card matrix-card', tabindex: 0, role: 'group', 'aria-label': 'Endpoints by node' },
    h('table', { class: 'matrix' },
      h('caption', { class: 'unseen' }, 'Endpoints, and the outcomes of connections from each node to them'),
      h('thead', null, h('tr', null,
        h('td', { class: 'corner' }, 'endpoint ↓ from node →'),
        s.nodes.map(n => h('th', { key: n.name, scope: 'col', class: n.fault && 'fault', title: n.error },
          h('a', { href: `nodes/${encodeURIComponent(n.name)}/#/service/${pathOf(key)}` }, name(n.name)),
          h('small', { class: n.error || n.fault ? 'bad' : null }, n.error ? '✗ no response' : n.fault ? `✗ ${fails(n, 'endpoint')}` : counts(n)))))),
      h('tbody', null, s.endpoints.map(e => h('tr', { key: e.address, class: e.fault && 'fault' },
        h('th', { scope: 'row' }, name(shortPod(e.pod, e.address)),
          h('small', { class: 'mono' }, e.pod && e.address),
          e.node && h('small', null, 'on ', name(e.node)),
          e.fault && h('small', { class: 'bad' }, `✗ ${fails(e, 'node')}`)),
        e.cells.map((c, i) => h('td', { key: s.nodes[i].name, class: [s.nodes[i].fault && 'fault', c.result].filter(Boolean).join(' ') }, cell(c, s.nodes[i]))))))));
}

function fails({ bad, good }, what) { return good ? `${bad} of ${plural(bad + good, what)} fail` : bad === 1 ? `1 ${what} fails` : `all ${plural(bad, what)} fail`; }

function counts({ failed = 0, tried = 0 }) { return tried > 0 ? `${short(failed)} of ${short(tried)}` : 'no connections'; }

function cell(c, node) {
  if (!c.state) return h('span', { class: 'quiet', title: node.error ? 'this node does not answer' : 'this node does not know the endpoint' }, '·');
  const state = stateOf(endpointStates, c.state);
  const ready = c.state === 'ready';
  const mark = c.result === 'good' && ready ? { mark: '✓', word: '', means: 'it answers', tone: 'good' }
    : c.result === 'bad' && ready ? { mark: '✗', word: 'fails', means: 'one attempt in ten fails, or more', tone: 'bad' }
      : ready ? { mark: '–', word: '', means: 'not enough connections to judge', tone: 'quiet' } : state;
  return [
    stateMark(mark, c.cause ? `${mark.means}: ${c.cause}` : mark.means),
    c.cause && h('small', { class: 'cause' }, c.cause),
    h('small', null, counts(c), c.connectP99Ms > 0 && ` · ${duration(c.connectP99Ms)}`),
  ];
}
