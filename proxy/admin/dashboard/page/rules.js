// A service port's addresses, and the portal's rules for them: in words, and as
// installed in the kernel.

import { h } from './dom.js';
import { stateMark } from './marks.js';
import { clock } from './words.js';

const kinds = { ClusterIP: 'cluster IP', NodePort: 'node port', ExternalIP: 'external IP', LoadBalancerIP: 'load balancer IP' };

const installed = {
  ok: { mark: '✓', word: 'installed so', tone: 'good' },
  missing: { mark: '✗', word: 'missing in the kernel', tone: 'bad' },
  differs: { mark: '✗', word: 'differs in the kernel', tone: 'bad' },
  extra: { mark: '!', word: 'in the kernel, but not required', tone: 'warn' },
};

// rulesOf takes the response of /api/v1/portals for the Service, null if there is
// none yet, and the function that requests it again.
export function rulesOf(port, portals, look) {
  return [
    h('ul', { class: 'rules' }, port.vips.map(v => h('li', { key: `${v.kind} ${v.address}` },
      h('div', null, h('span', { class: 'mono' }, v.address),
        h('small', { class: 'quiet' }, ` ${kinds[v.kind] ?? v.kind}`, v.sources && `, only for ${v.sources.join(', ')}`)),
      port.rules.filter(r => r.vip === v.address).map(r => ruleInWords(r, portals))))),
    h('p', { class: 'quiet' },
      port.listeners.length > 0
        ? ['usher listens for it on ', h('span', { class: 'mono' }, port.listeners.join(', ')), '. ']
        : 'usher does not listen for it. ',
      portals?.mode !== 'none' && [
        portals ? `The kernel was checked at ${clock(portals.at)}. ` : 'The kernel has not been checked. ',
        h('button', { type: 'button', class: 'plain-button', onclick: look }, portals ? 'Check again' : 'Check now'),
      ],
      portals?.mode === 'none' && 'No rule is installed: no portal is in use.'),
  ];
}

function ruleInWords(rule, portals) {
  const found = portals?.rules.find(r => r.vip === rule.vip && r.protocol === rule.protocol);
  const state = installed[found?.state];
  return h('div', { class: 'rule' },
    h('span', null, rule.text || effect(rule)),
    state && stateMark(state),
    rule.mode !== 'none' && h('code', null, `${rule.mode}: ${rule.protocol ?? ''} ${rule.vip} ${effect(rule)}`),
    found?.installed && h('code', { class: 'bad' }, `in the kernel: ${effect(found.installed)}`));
}

function effect({ action, localPort, sources }) {
  return `→ ${action}${localPort ? ` to port ${localPort}` : ''}${sources ? ` from ${sources.join(', ')}` : ''}`;
}
