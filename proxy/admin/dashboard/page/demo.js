// Breaking and repairing endpoints; only for usher demo.

import { demoBreak, demoEndpoints, demoRepair } from './api.js';
import { h } from './dom.js';
import { live } from './live.js';

class Demo extends EventTarget {
  // endpoints are the demo's servers by address; null without a demo.
  endpoints = null;
  #failure = '';

  async refresh() {
    if (!live.status?.demo) return;
    this.endpoints = new Map((await demoEndpoints()).items.map(e => [e.endpoint, e]));
  }

  async #do(what) {
    try {
      await what();
      this.#failure = '';
      await this.refresh();
    } catch (err) {
      this.#failure = err.message;
    }
    this.dispatchEvent(new Event('changed'));
  }

  // buttons returns the buttons for an endpoint; null if it is not the demo's.
  buttons(address) {
    const e = this.endpoints?.get(address);
    return e && h('span', { class: 'demo-buttons' },
      h('select', { 'aria-label': `Break ${nameOf(e)}`, class: e.broken ? 'bad' : null, onchange: ev => this.#choose(e, ev.target.value) },
        h('option', { value: '', selected: !e.broken }, e.broken ? 'Repair it' : 'Break…'),
        [...new Set([...e.can, e.broken].filter(Boolean))].map(fault => h('option', { value: fault, selected: fault === e.broken }, fault))),
      h('button', { type: 'button', 'aria-label': `Repair ${nameOf(e)}`, disabled: !e.broken, onclick: () => this.#choose(e, '') }, 'Repair'));
  }

  #choose(e, fault) { this.#do(() => fault ? demoBreak(e.endpoint, fault) : demoRepair(e.endpoint)); }

  // panel returns the part of the overview that offers to break endpoints.
  panel() {
    if (!this.endpoints) return null;
    return h('section', { key: 'demo', class: 'card demo', 'aria-labelledby': 'demo-title' },
      h('h2', { id: 'demo-title' }, 'Break something'),
      h('p', { class: 'quiet' }, 'This is the demo: its endpoints are small servers in the same process. ',
        'Break one, and watch connections move to the next endpoint.'),
      this.#failure && h('p', { class: 'bad', role: 'alert' }, this.#failure),
      h('ul', { class: 'demo-list' }, [...this.endpoints].map(([address, e]) => h('li', { key: address },
        h('span', null, h('b', null, nameOf(e)), h('small', { class: e.broken ? 'bad' : null }, ` ${e.does}`)),
        this.buttons(address)))));
  }
}

function nameOf(e) { return e.pod.slice(e.pod.indexOf('/') + 1); }

export const demo = new Demo();
