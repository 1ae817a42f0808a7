// The endpoints of a service port, each with its state, its figures and the
// remaining time in quarantine.

import { demo } from './demo.js';
import { byPod } from './details.js';
import { h } from './dom.js';
import { live } from './live.js';
import { stateMark } from './marks.js';
import { duration, endpointStates, number, shortPod, since, stateOf } from './words.js';

export function endpointList(endpoints) {
  if (endpoints.length === 0) {
    return h('p', { class: 'empty' }, 'No endpoints: clients are refused at once. Endpoints appear when the Service’s ',
      'selector matches ready Pods, or when an EndpointSlice lists some.');
  }
  return h('ul', { class: 'endpoints' }, endpoints.toSorted(byPod).map(endpoint));
}

function endpoint(e) {
  const state = stateOf(endpointStates, e.state);
  const count = (n, what, tone) => h('span', { class: tone }, h('b', null, number(n)), ` ${what}`);
  return h('li', { key: e.address },
    h('div', { class: 'who' },
      h('b', null, shortPod(e.pod, e.address)),
      h('small', { class: 'mono' }, e.address, e.node && ` on ${e.node}`)),
    h('div', { class: 'how' },
      stateMark(state), e.since && h('small', { class: 'quiet' }, since(e.since)),
      e.quarantine ? countdown(e.quarantine)
        : e.state !== 'ready' ? h('small', null, state.means)
          : e.weight === 0 ? h('small', null, 'weight 0: no new connections')
          : e.share ? h('small', null, `is new, and has ${Math.round(100 * e.share)} % of its share`)
          : e.usedFor.length === 0 && h('small', null, e.notUsed)),
    h('div', { class: 'figures' },
      e.weight > 1 && count(e.weight, 'weight'),
      count(e.active, e.limit ? `of ${number(e.limit)} open` : 'open'), count(e.connected, 'connections'), h('span', { class: e.failed > 0 && 'bad', title: 'failed attempts, and connections that it reset' }, h('b', null, number(e.failed)), ' failures'),
      e.noResponse > 0 && count(e.noResponse, 'without a response', 'warn'),
      e.latency && h('span', { title: waits(e.latency) }, h('b', null, duration(e.latency.firstByteP99Ms || e.latency.connectP99Ms)), ' p99')),
    demo.buttons(e.address));
}

// waits returns how long clients recently waited.
export function waits(l) {
  const of = (what, p50, p99) => `until ${what}, half of them no longer than ${duration(p50)}, and all but one in a hundred no longer than ${duration(p99)}`;
  return `In the last 5 to 10 minutes clients waited ${of('they were connected', l.connectP50Ms, l.connectP99Ms)}`
    + (l.firstByteP99Ms ? `; ${of('the endpoint’s first byte came', l.firstByteP50Ms, l.firstByteP99Ms)}.` : '.');
}

function countdown({ until, cause, failures }) {
  const left = (Date.parse(until) - live.now()) / 1000;
  return h('small', { class: 'countdown' },
    h('b', null, left > 0 ? `${Math.ceil(left)} s` : 'now'),
    left > 0 ? ' until it is tried again: ' : ' it is tried again: ',
    cause, failures > 1 && (cause.includes(' probes failed: ') ? `; ${failures} failed probes, not healthy in between`
      : `; ${failures} failures, with no client connected in between`));
}
