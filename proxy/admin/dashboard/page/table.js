// A table for any number of rows: only visible rows are in the page. It is one stop
// for the Tab key; arrow keys move between rows.

import { h, morph } from './dom.js';

const few = 100; // a table with at most this number of rows has all of them in the page
const margin = 8; // rows in the page above and below the visible ones

// The options of a Table:
//   caption   its content, for screen readers
//   name      a class: tables.css has the columns' widths, and --row, the height
//             of a row in px
//   columns   [{ name, title, sort, cell(row) }]; the first cell is the link of
//             the row
//   key, href of a row
//   mutable   row objects change in place
//   onSort    called with a column's sort when its heading is pressed
export class Table {
  rows = [];
  sort = {};
  #head = h('tr', { 'aria-rowindex': 1 });
  #body = h('tbody');
  #table;
  #made = new Map(); // the rows that are in the page, by key
  #active = 0; // the row that gets the focus by Tab
  #height = 44;

  constructor(options) {
    this.options = options;
    this.#table = h('table', { class: options.name, onkeydown: e => this.#keyDown(e) },
      h('caption', { class: 'unseen' }, options.caption), h('thead', null, this.#head), this.#body);
    this.node = h('div', { class: 'table' }, this.#table);
    this.scrolled = () => this.#soon();
  }

  start() {
    addEventListener('scroll', this.scrolled, { passive: true });
    addEventListener('resize', this.scrolled);
  }

  stop() {
    removeEventListener('scroll', this.scrolled);
    removeEventListener('resize', this.scrolled);
  }

  #soon() {
    if (this.waits) return;
    this.waits = true;
    requestAnimationFrame(() => { this.waits = false; this.draw(); });
  }

  // visible returns the visible rows.
  visible() {
    const [from, to] = this.#window();
    return this.rows.slice(from, to);
  }

  draw() {
    this.#active = Math.min(this.#active, Math.max(0, this.rows.length - 1));
    const [from, to] = this.#window();
    const tabStop = this.#active >= from && this.#active < to ? this.#active : from;
    this.#table.setAttribute('aria-rowcount', this.rows.length + 1);
    morph(this.#head, this.options.columns.map(c => this.#heading(c)));
    const made = this.#made;
    const focused = this.#body.contains(document.activeElement);
    this.#made = new Map();
    morph(this.#body, [
      this.#space('above', from),
      this.rows.slice(from, to).map((row, i) => this.#row(made, row, from + i, from + i === tabStop)),
      this.#space('below', this.rows.length - to)]);
    if (focused && !this.#body.contains(document.activeElement)) { // the row is no longer in the page
      this.#body.querySelector('[tabindex="0"]')?.focus({ preventScroll: true });
    }
    for (const el of this.#body.children) if (this.#made.has(el.key)) this.#made.get(el.key).el = el; // morph may have kept an earlier element
    const height = parseFloat(getComputedStyle(this.#table).getPropertyValue('--row'));
    if (height && height !== this.#height) {
      this.#height = height;
      this.draw();
    }
  }

  #window() {
    if (this.rows.length <= few) return [0, this.rows.length];
    const top = -this.#body.getBoundingClientRect().top;
    const shown = Math.ceil(innerHeight / this.#height) + 2 * margin;
    const from = Math.max(0, Math.min(this.rows.length - shown, Math.floor(top / this.#height) - margin));
    return [from, Math.min(this.rows.length, from + shown)];
  }

  #space(key, rows) {
    return rows > 0 && h('tr', { key, class: 'space', 'aria-hidden': 'true' },
      h('td', { colspan: this.options.columns.length, style: { height: `${rows * this.#height}px` } }));
  }

  #heading({ title, name, sort }) {
    const sorted = sort && this.sort.by === sort;
    return h('th', { scope: 'col', class: name, 'aria-sort': sorted ? (this.sort.descending ? 'descending' : 'ascending') : null },
      sort ? h('button', { type: 'button', onclick: () => this.options.onSort(sort) }, title) : title);
  }

  // Unchanged rows are not created again.
  #row(made, row, index, tabStop) {
    const key = `row ${this.options.key(row)}`;
    const before = made.get(key);
    const same = !this.options.mutable && before?.row === row && before.index === index && before.tabStop === tabStop;
    const el = same ? before.el : this.#newRow(key, row, index, tabStop);
    this.#made.set(key, { row, index, tabStop, el });
    return el;
  }

  #newRow(key, row, index, tabStop) {
    const { columns, href } = this.options;
    const [first, ...others] = columns;
    return h('tr', { key, 'aria-rowindex': index + 2, onclick: e => this.#click(e) },
      h('th', { scope: 'row', class: first.name },
        h('a', { href: href(row), tabindex: tabStop ? 0 : -1, 'data-row': index }, first.cell(row))),
      others.map(c => h('td', { class: c.name }, c.cell(row))));
  }

  // A click anywhere in a row follows its link, unless text is being selected.
  #click(e) {
    if (e.target.closest('a, button') || !getSelection().isCollapsed) return;
    e.currentTarget.querySelector('a').click();
  }

  #keyDown(e) {
    const at = e.target.dataset?.row;
    if (at === undefined || e.altKey || e.ctrlKey || e.metaKey) return;
    const page = Math.max(1, Math.floor(innerHeight / this.#height) - 3);
    const to = {
      ArrowDown: +at + 1, ArrowUp: +at - 1, PageDown: +at + page, PageUp: +at - page, Home: 0, End: this.rows.length - 1,
    }[e.key];
    if (to === undefined) return;
    e.preventDefault();
    this.#goTo(Math.max(0, Math.min(this.rows.length - 1, to)));
  }

  #goTo(index) {
    this.#active = index;
    const top = this.#body.getBoundingClientRect().top + index * this.#height;
    const room = 2 * this.#height; // the headings cover the top of the screen
    if (top < room) scrollBy(0, top - room);
    else if (top + this.#height > innerHeight) scrollBy(0, top + this.#height - innerHeight + 8);
    this.draw();
    this.node.querySelector(`[data-row="${index}"]`)?.focus({ preventScroll: true });
  }
}
