// Small elements that several views have in common.

import { h } from './dom.js';
import { number, short } from './words.js';

// name returns a name that is shortened in its middle if it does not fit.
export function name(text, tone = '') {
  const end = 9; // letters that stay
  if (text.length <= end + 5) return tone ? h('span', { class: tone }, text) : text;
  return h('span', { class: `name ${tone}`, title: text }, h('span', null, text.slice(0, -end)), h('span', null, text.slice(-end)));
}

// stateMark returns a state of words.js: a mark that does not depend on color, and a word.
export function stateMark({ mark, word, means, tone }, more) {
  return h('span', { class: `state ${tone}`, title: more ?? means }, h('span', { 'aria-hidden': 'true' }, mark), ` ${word}`);
}

// figure returns a number with its name, for a list of class numbers; more is
// below it.
export function figure(name, value, { more, tone } = {}) {
  return h('div', { class: `number ${tone || ''}` },
    h('dt', null, name), h('dd', null, value), more && h('dd', { class: 'more' }, more));
}

// searchField returns the search field of the view: the key / focuses it.
export function searchField(label, placeholder, search) {
  return h('input', {
    type: 'search', class: 'search', id: 'search', 'aria-label': label, placeholder, 'aria-keyshortcuts': '/',
    autocomplete: 'off', spellcheck: 'false', oninput: e => search(e.target.value),
  });
}

// choice returns a button that stays pressed while its selection is shown. The key
// distinguishes it from others.
export function choice(key, text, pressed, choose, tone = '') {
  return h('button', { key, type: 'button', class: `filter ${tone}`, 'aria-pressed': String(pressed), onclick: choose }, text);
}

// tableOr returns a table, or a text if it has no rows.
export function tableOr(table, text, ...more) {
  return table.rows.length > 0
    ? h('div', { key: 'rows', class: 'card', own: table })
    : h('div', { key: 'none', class: 'card empty' }, h('p', null, text), more);
}

// count is dimmed while it is zero or unknown.
export function count(n, tone = '') { return h('span', { class: n ? tone : 'quiet', title: number(n) }, n === undefined ? '–' : short(n)); }
