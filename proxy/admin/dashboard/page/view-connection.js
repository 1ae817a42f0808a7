// The page of one connection: all attempts and their outcomes.

import { get } from './api.js';
import { connections, lasted } from './connections.js';
import { pathOf } from './details.js';
import { h } from './dom.js';
import { ends } from './ends.js';
import { live } from './live.js';
import { waterfall } from './waterfall.js';
import { bytes, capital, clock, duration, plural } from './words.js';

export class OneConnection {
  #failure = null;
  #replaced = false; // usher was restarted, and another connection has this ID now

  constructor(draw, id) {
    this.draw = draw;
    this.id = +id;
    this.title = `Connection ${id}`;
  }

  start() { this.#ask(); }
  stop() {}
  drawn() {}
  tick() { if (this.connection?.state !== 'ended') this.#ask(); }
  step(e) { if (e.connection === this.id && e.kind !== 'accepted') this.#ask(); }

  async #ask() {
    try {
      const c = await get(`connections/${this.id}`);
      this.#replaced = this.connection !== undefined && this.connection.accepted !== c.accepted;
      if (!this.#replaced) this.connection = c;
      this.#failure = null;
    } catch (err) {
      this.#failure = err;
      this.connection ??= connections.get(this.id);
    }
    this.draw();
  }

  render() {
    const c = this.connection;
    if (!c || c.state !== 'ended' && this.#gone()) {
      return [
        h('h1', null, this.title),
        h('div', { class: 'card empty' }, h('p', null, this.#notThere()), h('a', { href: '#/connections' }, 'All known connections')),
      ];
    }
    return [
      h('p', { class: 'crumbs' },
        h('a', { href: '#/connections' }, 'Connections'), ' / ', h('a', { href: `#/service/${pathOf(c.service)}` }, c.service)),
      h('h1', null, this.title),
      h('p', { class: 'lead' }, story(c)),
      h('section', { class: 'card', 'aria-labelledby': 'attempts' },
        h('h2', { id: 'attempts' }, c.attempts.length > 0 ? plural(c.attempts.length, 'attempt') : 'No attempt'),
        c.attempts.length > 0 ? waterfall(c) : h('p', { class: 'quiet' }, noAttempt(c))),
      h('dl', { class: 'facts card' }, facts(c).map(([name, value]) => h('div', null, h('dt', null, name), h('dd', null, value)))),
    ];
  }

  #gone() { return this.#replaced || this.#failure?.status === 404; }

  #notThere() {
    if (!this.#gone() && !this.#failure) return 'Reading …';
    return this.#gone()
      ? 'usher no longer has this connection on record: it keeps the latest ones, and more of those that failed, were retried or slow, or got no response.'
      : this.#failure.message;
  }
}

function noAttempt(c) { return c.state === 'sending' ? 'No endpoint has answered.' : c.state === 'connecting' ? 'No attempt has ended.' : 'No endpoint was tried.'; }

// story describes a connection in sentences.
function story(c) {
  const silent = c.protocol === 'UDP'; // no response is not a failure
  const failures = c.attempts.filter(a => a.result !== 'connected' && !(silent && a.result === 'no-answer')).length;
  const failed = failures === 0 ? '' : failures === 1 ? 'One attempt failed; ' : `${failures} attempts failed; `;
  const end = ends.get(c.end)?.meaning ?? c.end;
  if (c.state === 'sending') return 'Datagrams go to an endpoint, which has sent none.';
  if (c.state === 'connecting') return capital(`${failed}selecting an endpoint.`);
  if (!c.endpoint) return capital(`${failed}no endpoint ${silent ? 'answered' : 'was found'}: ${end}.`);
  const well = c.state !== 'ended' || c.end === 'client-closed' || c.end === 'endpoint-closed';
  const noticed = failures > 0 && well ? ', so the client noticed nothing but the delay' : '';
  const then = c.state === 'ended' ? `${capital(end)}; it lasted ${duration(c.durationMs)}.` : 'It is open.';
  return `${failed || 'At the first attempt '}${c.pod || c.endpoint} ${c.end === 'no-response' ? 'accepted the connection' : 'answered'}${noticed}. ${then}`;
}

function facts(c) {
  const mono = text => h('span', { class: 'mono' }, text);
  return [
    ['Client', mono(c.client)],
    c.via && ['Through the load balancer at', mono(c.via)],
    ['Connected to', mono(`${c.vip} ${c.protocol}`)],
    ['Service port', `${c.service}${c.port ? `:${c.port}` : ''}, ${c.family}`],
    ['Endpoint', c.endpoint ? mono(c.endpoint) : 'none'],
    c.pod && ['Pod', c.pod],
    ['Accepted', clock(c.accepted)],
    c.connectMs && ['Endpoint found after', duration(c.connectMs)],
    c.firstByteMs && ['First byte after', duration(c.firstByteMs)],
    ['Duration', duration(lasted(c, live.now()))],
    ['To the endpoint', bytes(c.bytesToEndpoint)],
    ['To the client', bytes(c.bytesToClient)],
    ['End', c.state === 'ended' ? c.end : 'open'],
    c.error && ['Error', c.error],
  ].filter(Boolean);
}
