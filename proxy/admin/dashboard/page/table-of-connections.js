// A table of connections, with the same columns in every view.

import { broken, lasted } from './connections.js';
import { h } from './dom.js';
import { ends } from './ends.js';
import { live } from './live.js';
import { name } from './marks.js';
import { Table } from './table.js';
import { attemptsInShort } from './waterfall.js';
import { clock, duration } from './words.js';

// tableOfConnections omits the column of the Service for connections of one Service.
export function tableOfConnections(caption, { ofOneService = false } = {}) {
  return new Table({
    caption,
    name: ofOneService ? 'connections one-service' : 'connections',
    columns: columns.filter(c => !ofOneService || c.name !== 'of'),
    key: c => c.id,
    href: c => `#/connection/${c.id}`,
    mutable: true,
  });
}

const columns = [
  { name: 'time', title: 'Time', cell: c => h('span', { class: 'mono' }, clock(c.accepted)) },
  { name: 'of', title: 'Service', cell: c => name(c.service) },
  { name: 'client', title: 'Client', cell: c => h('span', { class: 'mono' }, c.client) },
  { name: 'attempts', title: 'Attempts', cell: attemptsInShort },
  { name: 'lasted', title: 'Duration', cell: c => duration(lasted(c, live.now())) },
  { name: 'end', title: 'End', cell: endInShort },
];

function endInShort(c) {
  if (c.state !== 'ended') return h('span', { class: 'good' }, c.state === 'established' ? 'open' : c.state);
  const tone = broken(c, ends) ? 'bad' : 'quiet';
  return h('span', { class: tone, title: ends.get(c.end)?.meaning }, c.end?.replaceAll('-', ' '));
}
