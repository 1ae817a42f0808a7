// A dry run: which endpoints usher would try for a client, in which order, and why.

import { get } from './api.js';
import { h } from './dom.js';
import { portName, portNumber } from './words.js';

export class ExplainForm {
  #answer = null;
  #failure = '';

  constructor(draw, service) {
    this.draw = draw;
    this.service = service;
  }

  async #ask(form) {
    const { client, port } = Object.fromEntries(new FormData(form));
    const [vip, name] = JSON.parse(port);
    try {
      this.#answer = await get('explain', { service: this.service, client: client.trim(), vip, port: name });
      this.#failure = '';
    } catch (err) {
      this.#answer = null;
      this.#failure = err.message;
    }
    this.draw();
  }

  render(detail) {
    return h('section', { key: 'explain', class: 'card', 'aria-labelledby': 'explain' },
      h('h2', { id: 'explain' }, 'Which endpoint would a client get?'),
      h('p', { class: 'quiet' }, 'A dry run: no connection is made, and the rotation does not advance.'),
      h('form', { class: 'explain', onsubmit: e => { e.preventDefault(); this.#ask(e.target); } },
        h('label', null, 'Client’s address ',
          h('input', { name: 'client', placeholder: 'an unknown client', autocomplete: 'off', spellcheck: 'false' })),
        h('label', null, 'Service port ', h('select', { name: 'port' }, detail.ports.map(p =>
          h('option', { value: JSON.stringify([p.vip, p.name ?? portNumber(p)]) }, `${portName(p)} ${detail.ports.length > 1 ? p.family : ''}`)))),
        h('button', { type: 'submit', class: 'main-button' }, 'Explain')),
      h('div', { role: 'status' }, this.#failure && h('p', { class: 'bad' }, this.#failure), this.#answer && answer(this.#answer)));
  }
}

function answer(a) {
  return [
    (a.verdict === 'try' ? [a.policy] : a.text).map(t => h('p', null, t)),
    a.order.length > 0 && h('ol', { class: 'order' }, a.order.map(c => candidate(c))),
    a.notTried.length > 0 && [h('h3', null, 'Not tried at all'), h('ul', { class: 'order' }, a.notTried.map(c => candidate(c)))],
  ];
}

function candidate(c) {
  return h('li', null,
    h('b', null, c.pod || c.endpoint), c.pod && h('small', { class: 'mono quiet' }, ` ${c.endpoint}`),
    h('span', { class: 'quiet' }, ` ${c.text}${c.sourceText ? `; the endpoint sees ${c.sourceText}` : ''}`));
}
