// Elements from data. Text always becomes a text node, and never markup.

const svgNames = new Set(['svg', 'g', 'rect', 'circle', 'path', 'polyline', 'text']);

// h makes an element. Props are attributes, except
//   key      distinguishes it from its siblings when morph compares (any value)
//   on…      handlers, as in onclick
//   style    an object of CSS properties
//   own      a part of the page with its own node (a table, the picture): the
//            element is empty until mount inserts that node; morph does not change it
// An attribute that is false, null or undefined is omitted; true is an empty one.
// Children are nodes, texts, numbers, or arrays of them; null and false are omitted.
export function h(name, props, ...children) {
  const el = svgNames.has(name) ? document.createElementNS('http://www.w3.org/2000/svg', name) : document.createElement(name);
  el.handlers = {};
  for (const [prop, value] of Object.entries(props ?? {})) {
    if (prop === 'key' || prop === 'own') el[prop] = value;
    else if (value === null || value === undefined || value === false) continue;
    else if (prop.startsWith('on')) el[prop] = el.handlers[prop] = value;
    else if (prop === 'style') for (const [k, v] of Object.entries(value)) el.style.setProperty(k, v);
    else el.setAttribute(prop, value === true ? '' : value);
  }
  if (el.own) el.setAttribute('data-own', '');
  append(el, children);
  return el;
}

// mount inserts parts of the page into the elements with own.
export function mount(root) { for (const el of root.querySelectorAll('[data-own]:empty')) el.append(el.own.node); }

function append(el, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(el, child);
    else el.append(child instanceof Node ? child : String(child));
  }
}

// morph makes the children of parent equal to the wanted nodes, and keeps
// existing ones, so that focus, selection and scroll position do not change.
export function morph(parent, wanted) {
  const nodes = wanted.flat(Infinity).filter(Boolean);
  const keys = new Set(nodes.map(n => n.key).filter(k => k !== undefined));
  const have = new Map();
  for (const child of parent.childNodes) if (child.key !== undefined) have.set(child.key, child);
  let at = parent.firstChild;
  for (const node of nodes) {
    // Obsolete nodes are removed first: moving the others would lose the focus.
    while (at && at.key !== undefined && !keys.has(at.key)) at = removeAndNext(at);
    const old = node.key !== undefined ? have.get(node.key) : at?.key === undefined ? at : null;
    if (!old || old === node || !alike(old, node)) {
      if (old === node && old === at) at = at.nextSibling;
      else parent.insertBefore(node, at);
      continue;
    }
    if (old === at) at = at.nextSibling;
    else parent.insertBefore(old, at);
    update(old, node);
  }
  while (at) at = removeAndNext(at);
}

function removeAndNext(node) {
  const next = node.nextSibling;
  node.remove();
  return next;
}

function alike(a, b) { return a.nodeType === b.nodeType && a.nodeName === b.nodeName && a.own === b.own; }

function update(old, node) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.nodeValue !== node.nodeValue) old.nodeValue = node.nodeValue;
    return;
  }
  // The attribute selected has no effect after the user's first selection.
  const selected = node.hasAttribute('selected');
  if (old.nodeName === 'OPTION' && old.hasAttribute('selected') !== selected) old.selected = selected;
  for (const { name } of [...old.attributes]) {
    if (name !== 'style' && !node.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of node.attributes) {
    if (name !== 'style' && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (old.style.cssText !== node.style.cssText) old.style.cssText = node.style.cssText;
  for (const name in old.handlers) if (!(name in node.handlers)) old[name] = null;
  for (const name in node.handlers) old[name] = node.handlers[name];
  old.handlers = node.handlers;
  if (!old.own) morph(old, [...node.childNodes]);
}
