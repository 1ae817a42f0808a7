// The columns of the table of Services.

import { h } from './dom.js';
import { waits } from './endpoints.js';
import { count, name, stateMark } from './marks.js';
import { sparkline } from './sparkline.js';
import { duration, serviceStates, short, since, stateOf } from './words.js';

export const serviceColumns = [
  { name: 'service', title: 'Service', sort: 'name', cell: s => [name(`${s.namespace}/`, 'namespace'), name(s.name)] },
  { name: 'state', title: 'State', sort: 'state', cell: state },
  { name: 'address', title: 'Address', cell: address },
  { name: 'endpoints', title: 'Endpoints', sort: 'endpoints', cell: endpoints },
  { name: 'open', title: 'Open', sort: 'active', cell: s => count(s.totals.active, '') },
  { name: 'total', title: 'Connections', sort: 'accepted', cell: total },
  { name: 'retries', title: 'Retries', sort: 'retries', cell: s => count(s.totals.retries, 'warn') },
  { name: 'failed', title: 'Failed', sort: 'failed', cell: s => count(s.totals.failed, 'bad') },
  { name: 'wait', title: 'Wait, p99', cell: wait },
];

function state(s) {
  const is = stateOf(serviceStates, s.state);
  const why = (s.ports.find(p => p.problem)?.problem ?? s.problems?.[0])?.message ?? is.means;
  return stateMark(is, s.since ? `${why}, ${since(s.since)}` : why);
}

function address({ ports }) {
  const [first, ...others] = ports;
  return h('span', { class: 'mono' }, first && `${first.vip} ${first.protocol}`,
    others.length > 0 && h('span', { class: 'quiet' }, ` +${others.length}`));
}

function endpoints({ endpoints: e }) { return e.total === 0 ? count(0, '') : `${short(e.ready)} of ${short(e.total)}`; }

function total(s) {
  return [h('span', { class: 'curve' }, sparkline(s.history, ['accepted', 'retries'])), count(s.totals.accepted, '')];
}

// wait returns the recent p99 of the time that clients waited for the first byte.
function wait({ latency: l }) {
  return l ? h('span', { title: waits(l) }, duration(l.firstByteP99Ms || l.connectP99Ms)) : h('span', { class: 'quiet' }, '–');
}
