// The attempts of a connection as bars on one scale of time.

import { h } from './dom.js';
import { name } from './marks.js';
import { duration, results, shortPod, stateOf } from './words.js';

// waterfall draws the time until an endpoint was connected, or the search failed.
export function waterfall(connection) {
  const { attempts } = connection;
  const end = Math.max(...attempts.map(a => a.startMs + a.durationMs), 0.001);
  const percent = ms => `${(ms / end * 100).toFixed(3)}%`;
  return h('div', { class: 'waterfall', role: 'list', 'aria-label': 'attempts' },
    h('div', { class: 'scale', 'aria-hidden': 'true' }, ticks(end).map(t => h('span', { style: { left: percent(t) } }, duration(t)))),
    attempts.map((a, i) => {
      const { mark, word, tone } = stateOf(results, a.result);
      const before = i === 0 ? 0 : attempts[i - 1].startMs + attempts[i - 1].durationMs;
      const waited = a.startMs - before;
      return h('div', { class: `attempt ${tone}`, role: 'listitem', 'data-attempt': a.number },
        h('div', { class: 'who' },
          h('b', null, a.number), h('span', { class: 'mono' }, a.endpoint), a.pod && h('small', null, a.pod)),
        h('div', { class: 'track', 'aria-hidden': 'true' },
          waited > end / 100 && h('i', { class: 'waited', style: { left: percent(before), width: percent(waited) } }),
          h('i', { class: 'bar', style: { left: `min(${percent(a.startMs)}, 100% - 3px)`, width: percent(a.durationMs) } })),
        h('div', { class: 'outcome' },
          h('b', null, `${mark} ${word} after ${duration(a.durationMs)}`),
          h('small', null, [a.error && a.error !== word && a.error, `chosen by: ${a.reason}`,
            a.skipped && `skipped ${a.skipped} in quarantine`,
            waited > end / 100 && `${duration(waited)} waited before`, a.sourceText && `the endpoint sees ${a.sourceText}`].filter(Boolean).join(' · '))));
    }));
}

// ticks returns round times, three to six of them.
function ticks(end) {
  const step = [1, 2, 5, 10].map(n => n * 10 ** Math.floor(Math.log10(end / 4))).find(n => end / n <= 6);
  return Array.from({ length: Math.floor(end / step) + 1 }, (_, i) => i * step).filter(t => t < end * 0.97);
}

// attemptsInShort returns one line: the attempted endpoints and outcomes.
export function attemptsInShort({ attempts, state }) {
  if (attempts.length === 0) {
    return h('span', { class: 'quiet' }, state === 'sending' ? 'no endpoint has answered' : state === 'connecting' ? 'selecting an endpoint' : 'no endpoint was tried');
  }
  return h('span', { class: 'chips' }, attempts.map((a, i) => {
    const { mark, word, tone } = stateOf(results, a.result);
    return [i > 0 && h('span', { class: 'then', 'aria-label': 'then' }, '→'),
      h('span', { class: `chip ${tone}`, title: `attempt ${a.number}: ${a.endpoint} ${word} after ${duration(a.durationMs)}` },
        h('span', { 'aria-hidden': 'true' }, mark), h('span', { class: 'unseen' }, word), ' ', name(shortPod(a.pod, a.endpoint)))];
  }));
}
