// The recent rate of a counter, as a small curve.

import { h } from './dom.js';

const width = 96, height = 24;

// sparkline draws counters of a history (see services.js), each with its own class,
// on one scale. Screen readers skip it, since the page also has the numbers as text.
export function sparkline(history, counts) {
  const curves = counts.map(count => rates(history, count));
  const top = Math.max(1, ...curves.flat().map(p => p.y));
  const end = history.at(-1)?.t ?? 0;
  const span = Math.max(60_000, end - (history[0]?.t ?? 0));
  const at = p => `${(width - (end - p.x) / span * width).toFixed(1)},${(height - 2 - p.y / top * (height - 4)).toFixed(1)}`;
  return h('svg', { class: 'spark', viewBox: `0 0 ${width} ${height}`, 'aria-hidden': 'true' },
    h('path', { class: 'ground', d: `M0 ${height - 2}H${width}` }),
    curves.map((curve, i) => curve.some(p => p.y > 0) && h('polyline', { class: counts[i], points: curve.map(at).join(' ') })));
}

function rates(history, count) {
  const out = [];
  for (let i = 1; i < history.length; i++) {
    const seconds = (history[i].t - history[i - 1].t) / 1000;
    if (seconds > 0) out.push({ x: history[i].t, y: (history[i][count] - history[i - 1][count]) / seconds });
  }
  return out;
}
