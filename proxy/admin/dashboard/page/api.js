// Requests to the admin API. Paths are relative, so that the page also works
// behind a proxy with a path prefix (kubectl proxy).

const timeout = 5000; // ms until a request without a response fails

// Failure is a response with a status other than 2xx, or none: status is 0 then.
class Failure extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// get returns the response for path, below /api/v1. Empty parameters are
// omitted; an array repeats its parameter.
export function get(path, params = {}, wait = timeout) { return ask(`api/v1/${path}${query(params)}`, {}, wait).then(r => r.json()); }

// changesSoFar returns the configuration changes that usher still keeps.
export async function changesSoFar(service) {
  const text = await ask(`api/v1/events${query({ history: true, follow: false, kind: 'changes', service })}`).then(r => r.text());
  return text.split('\n\n')
    .filter(block => /^event: ?change$/m.test(block))
    .map(block => JSON.parse(block.match(/^data: ?(.*)$/m)[1]));
}

// The demo's own requests; they exist only while usher demo runs.
export function demoEndpoints() { return ask('demo/endpoints').then(r => r.json()); }
export function demoBreak(endpoint, how) { return post('demo/break', { endpoint, how }); }
export function demoRepair(endpoint) { return post('demo/repair', { endpoint }); }

function post(path, body) {
  // No other site can make a browser send this header.
  const headers = { 'Content-Type': 'application/json', 'X-Usher-Demo': '1' };
  return ask(path, { method: 'POST', headers, body: JSON.stringify(body) });
}

function query(params) {
  const out = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    for (const v of [value].flat()) if (v !== undefined && v !== null && v !== '') out.append(name, v);
  }
  return out.size ? `?${out}` : '';
}

async function ask(path, options = {}, wait = timeout) {
  let answer;
  try {
    answer = await fetch(path, { ...options, signal: AbortSignal.timeout(wait) });
  } catch (err) {
    throw new Failure(0, `no response from usher: ${err.message}`);
  }
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({}));
  throw new Failure(answer.status, body.message ?? `usher responded with status ${answer.status}`);
}
