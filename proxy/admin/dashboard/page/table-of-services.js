// The columns of the table of Services.

import { h } from './dom.js';
import { stateMark } from './marks.js';
import { sparkline } from './sparkline.js';
import { number, serviceStates, stateOf } from './words.js';

export const serviceColumns = [
  { name: 'service', title: 'Service', sort: 'name', cell: s => [h('span', { class: 'namespace' }, `${s.namespace}/`), s.name] },
  { name: 'state', title: 'State', sort: 'state', cell: state },
  { name: 'address', title: 'Address', cell: address },
  { name: 'endpoints', title: 'Endpoints', sort: 'endpoints', cell: endpoints },
  { name: 'open', title: 'Open', sort: 'active', cell: s => count(s.totals.active, '') },
  { name: 'total', title: 'Connections', sort: 'accepted', cell: total },
  { name: 'retries', title: 'Retries', sort: 'retries', cell: s => count(s.totals.retries, 'warn') },
  { name: 'failed', title: 'Failed', sort: 'failed', cell: s => count(s.totals.failed, 'bad') },
];

function state(s) { return stateMark(stateOf(serviceStates, s.state), s.ports.find(p => p.problem)?.problem.message); }

function address({ ports }) {
  const [first, ...others] = ports;
  return h('span', { class: 'mono' }, first && `${first.vip} ${first.protocol}`,
    others.length > 0 && h('span', { class: 'quiet' }, ` +${others.length}`));
}

function endpoints({ endpoints: e }) { return e.total === 0 ? count(0) : `${e.ready} of ${e.total}`; }

function total(s) {
  return [h('span', { class: 'curve' }, sparkline(s.history, ['accepted', 'retries'])), count(s.totals.accepted, '')];
}

// count is quiet while it is zero.
function count(n, tone) { return h('span', { class: n ? tone : 'quiet' }, number(n)); }
