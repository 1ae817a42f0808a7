// Small pieces that several views show in the same way.

import { h } from './dom.js';

// name is a name that gives way in its middle where there is no room for all of it.
export function name(text, tone = '') {
  const end = 9; // letters that stay
  if (text.length <= end + 5) return tone ? h('span', { class: tone }, text) : text;
  return h('span', { class: `name ${tone}`, title: text }, h('span', null, text.slice(0, -end)), h('span', null, text.slice(-end)));
}

// stateMark is a state of words.js: a mark that does not need colour, and a word.
export function stateMark({ mark, word, means, tone }, more) {
  return h('span', { class: `state ${tone}`, title: more ?? means }, h('span', { 'aria-hidden': 'true' }, mark), ` ${word}`);
}

// figure is a number with its name, for a list of class numbers; more stands
// below it.
export function figure(name, value, { more, tone } = {}) {
  return h('div', { class: `number ${tone || ''}` },
    h('dt', null, name), h('dd', null, value), more && h('dd', { class: 'more' }, more));
}

// searchField is the view's one field to search in: the key / goes to it.
export function searchField(label, placeholder, search) {
  return h('input', {
    type: 'search', class: 'search', id: 'search', 'aria-label': label, placeholder, 'aria-keyshortcuts': '/',
    autocomplete: 'off', spellcheck: 'false', oninput: e => search(e.target.value),
  });
}

// choice is a button that stays pressed while what it stands for is shown.
export function choice(text, pressed, choose, tone = '') {
  return h('button', { type: 'button', class: `filter ${tone}`, 'aria-pressed': String(pressed), onclick: choose }, text);
}

// tableOr shows a table, or what to say when it has no rows.
export function tableOr(table, text, ...more) {
  return table.rows.length > 0
    ? h('div', { key: 'rows', class: 'card', own: table })
    : h('div', { key: 'none', class: 'card empty' }, h('p', null, text), more);
}
