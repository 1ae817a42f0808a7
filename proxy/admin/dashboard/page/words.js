// Texts: numbers with their units, and states in the terms of the documentation.

// number formats large numbers in groups of three digits.
export function number(n) { return Math.round(n ?? 0).toLocaleString('en').replaceAll(',', '\u202f'); }

// short formats a number for a table column: from a million on with three digits.
export function short(n) {
  if (n < 999_500) return number(n);
  const [unit, size] = [['M', 1e6], ['G', 1e9], ['T', 1e12]].findLast(([, size]) => n >= 0.9995 * size);
  return `${+(n / size).toPrecision(3)}\u202f${unit}`;
}

// plural returns "1 endpoint", "2 endpoints".
export function plural(n, noun) { return `${number(n)} ${noun}${n === 1 ? '' : 's'}`; }

// duration formats milliseconds with at most three digits.
export function duration(ms) {
  if (ms < 0.005) return '0 ms';
  if (ms < 10) return `${+ms.toFixed(2)} ms`;
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  if (ms < 10_000) return `${+(ms / 1000).toFixed(2)} s`;
  return seconds(ms / 1000);
}

// seconds formats longer times with two units: "9 s", "1 min 5 s", "2 h 58 min".
export function seconds(s) {
  s = Math.round(s);
  if (s < 60) return `${s} s`;
  const [large, small, a, b] = s < 3600 ? [60, 1, 'min', 's'] : s < 86400 ? [3600, 60, 'h', 'min'] : [86400, 3600, 'd', 'h'];
  const rest = Math.floor(s % large / small);
  return `${Math.floor(s / large)} ${a}${rest ? ` ${rest} ${b}` : ''}`;
}

export function bytes(n) {
  n ??= 0;
  if (n < 1000) return `${n} B`;
  for (const unit of ['kB', 'MB', 'GB', 'TB']) {
    n /= 1000;
    if (n < 999.5 || unit === 'TB') return `${n < 9.95 ? n.toFixed(1) : Math.round(n)} ${unit}`;
  }
}

// rate formats a number per second.
export function rate(perSecond) {
  if (perSecond === 0) return '0/s';
  if (perSecond < 0.1) return '<0.1/s';
  return `${perSecond < 10 ? +perSecond.toFixed(1) : number(perSecond)}/s`;
}

const day = 24 * 3600e3; // ms

// clock formats the local time of day, or day and time if that was at least a day ago.
export function clock(time) {
  const t = new Date(time);
  if (Date.now() - t > day) return t.toLocaleString('en-GB', { day: 'numeric', month: 'short', hour: '2-digit', minute: '2-digit' });
  return `${t.toLocaleTimeString('en-GB')}.${String(t.getMilliseconds()).padStart(3, '0')}`;
}

// since formats the start of a state: the local time of day, with the date if that was at least a day ago.
export function since(time) {
  const t = new Date(time);
  const date = Date.now() - t > day ? `${t.toLocaleDateString()} ` : '';
  return `since ${date}${t.toLocaleTimeString('en-GB')}`;
}

// The states of a Service: a mark that does not depend on color, a word, its
// meaning, and its severity.
export const serviceStates = {
  'rejected': { mark: '!', word: 'rejected', means: 'not served: its manifest, or a part of it, is invalid', tone: 'bad' },
  'problem': { mark: '!', word: 'problem', means: 'one of its ports has a problem', tone: 'bad' },
  'down': { mark: '✗', word: 'down', means: 'every usable endpoint is in quarantine', tone: 'bad' },
  'no-local-endpoints': { mark: '∅', word: 'no local endpoints', means: 'clients of its cluster IP are not served: internalTrafficPolicy is Local, and no usable endpoint is on this node', tone: 'bad' },
  'no-endpoints': { mark: '∅', word: 'no endpoints', means: 'a port has no usable endpoint', tone: 'warn' },
  'degraded': { mark: '~', word: 'degraded', means: 'some endpoint is an outlier, unresponsive, in quarantine, terminating or not ready', tone: 'warn' },
  'no-local-endpoints-external': { mark: '→', word: 'no local (external)', means: 'external clients must use another node: externalTrafficPolicy is Local, and no usable endpoint is on this one', tone: 'quiet' },
  'ok': { mark: '✓', word: 'ok', means: 'every endpoint is ready', tone: 'good' },
};

export const endpointStates = {
  'ready': { mark: '✓', word: 'ready', means: 'its conditions are good, and no other state applies', tone: 'good' },
  'outlier': { mark: '?', word: 'outlier', means: 'used as if ready, but it reset most of the connections that ended last, or 2% of those of the last 5 to 10 minutes', tone: 'bad' },
  'unresponsive': { mark: '?', word: 'unresponsive', means: 'used as if ready, but none of its recent clients received a byte, or far more of them received none than those of other endpoints of the port', tone: 'bad' },
  'quarantined': { mark: '✗', word: 'quarantined', means: 'it failed, and is skipped while another one is usable', tone: 'bad' },
  'terminating': { mark: '~', word: 'terminating', means: 'its Pod is terminating; used only if no endpoint is ready', tone: 'warn' },
  'not-ready': { mark: '–', word: 'not ready', means: 'it is not used', tone: 'quiet' },
};

export const results = {
  'connected': { mark: '✓', word: 'connected', tone: 'good' },
  'refused': { mark: '✗', word: 'refused', tone: 'bad' },
  'no-answer': { mark: '✗', word: 'no answer', tone: 'bad' },
  'failed': { mark: '✗', word: 'failed', tone: 'bad' },
};

// stateOf returns one of the above. A state of a later version is shown unchanged.
export function stateOf(table, state) {
  return table[state] ?? { mark: '·', word: String(state).replaceAll('-', ' '), means: '', tone: 'quiet' };
}

// portalWords describes how connections reach usher's listener.
export function portalWords(mode) {
  return {
    'iptables': 'Rules in the kernel (iptables) redirect packets for a Service’s address to usher’s port.',
    'nftables': 'Rules in the kernel (nftables) redirect packets for a Service’s address to usher’s port.',
    'address': 'Routes make the Services’ addresses addresses of this node, and usher listens on them.',
    'none': 'Nothing is installed in the kernel: clients connect to usher’s own port.',
  }[mode] ?? '';
}

export function capital(text) { return text.charAt(0).toUpperCase() + text.slice(1); }

// portName returns "http 80/TCP", or "80/UDP" for a port without a name.
export function portName(port) { return `${port.name ? `${port.name} ` : ''}${portNumber(port)}/${port.protocol}`; }

export function portNumber(port) { return port.vip.slice(port.vip.lastIndexOf(':') + 1); }

// shortPod returns the Pod's name without its namespace, or the address without a
// known Pod.
export function shortPod(pod, address) { return pod ? pod.slice(pod.indexOf('/') + 1) : address; }
