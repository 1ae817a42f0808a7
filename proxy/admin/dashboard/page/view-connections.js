// All known connections.

import { broken, connections, retried } from './connections.js';
import { h } from './dom.js';
import { ends } from './ends.js';
import { choice, searchField, tableOr } from './marks.js';
import { tableOfConnections } from './table-of-connections.js';
import { number, plural } from './words.js';

const shows = {
  all: ['All', () => true],
  open: ['Open', c => c.state !== 'ended'],
  retried: ['With more than one attempt', retried],
  broken: ['Not as they should', c => broken(c, ends)],
};

export class Connections {
  title = 'Connections';
  table = tableOfConnections('Connections');
  #q = '';
  #show = 'all';
  #count = ''; // for screen readers: the result of the last search or choice

  constructor(draw) { this.draw = draw; }

  start() { this.table.start(); }
  stop() { this.table.stop(); }

  #search(q) {
    this.#q = q;
    this.#update();
  }

  #update() {
    this.draw();
    this.#count = plural(this.table.rows.length, 'connection');
    this.draw();
  }

  #choose(show) {
    this.#show = show;
    this.#update();
  }

  render() {
    const q = this.#q.trim().toLowerCase();
    const [, matches] = shows[this.#show];
    this.table.rows = connections.newest(Infinity, c => matches(c) && (!q || textOf(c).includes(q)));
    return [
      h('h1', null, 'Connections'),
      h('p', { class: 'lead' },
        `The last ${number(connections.size)} that this page knows, the newest first. Open one to see every attempt.`),
      h('div', { class: 'section-head' },
        h('div', { class: 'filters', role: 'group', 'aria-label': 'Show' },
          Object.entries(shows).map(([show, [text]]) => choice(show, text, show === this.#show, () => this.#choose(show)))),
        searchField('Find connections', 'Service, client, endpoint, Pod, error', q => this.#search(q))),
      h('p', { class: 'unseen', role: 'status' }, this.#count),
      tableOr(this.table, connections.size === 0
        ? 'No client has connected yet. The overview says how to make a connection.'
        : 'No connection matches. Search for another word, or show all.'),
    ];
  }

  drawn() { if (this.table.rows.length > 0) this.table.draw(); }
}

function textOf(c) {
  const attempts = c.attempts.flatMap(a => [a.endpoint, a.pod, a.error, a.result]);
  return [c.service, c.port, c.protocol, c.client, c.vip, c.end, c.error, ...attempts].join(' ').toLowerCase();
}
