// The positions of the parts of the picture: in columns on wide screens, one below
// the other on a phone. These functions have no side effects.

const box = 44, gap = 8, groupGap = 18, headings = 34;

// layout takes the width in px and the objects to show:
//   { clients: [address…], services: [{ key, endpoints: [address…] }] }
// and returns { height, narrow, columns, places }, where places has x, y, w and h
// for the keys client:…, portal, service:… and endpoint:SERVICE|….
export function layout(width, model) { return width < 700 ? stacked(width, model) : inColumns(width, model); }

export function clientKey(client) { return `client:${client}`; }
export function serviceKey(service) { return `service:${service}`; }
export function endpointKey(service, endpoint) { return `endpoint:${service}|${endpoint}`; }

function inColumns(width, model) {
  const places = new Map();
  const w = [0.15, 0.15, 0.22, 0.27].map(part => Math.round(part * width));
  const between = (width - w.reduce((a, b) => a + b)) / 3;
  const x = w.map((_, i) => Math.round(w.slice(0, i).reduce((a, b) => a + b, 0) + i * between));

  let y = headings;
  for (const { key, endpoints } of model.services) {
    const rows = Math.max(1, endpoints.length);
    const height = rows * box + (rows - 1) * gap;
    places.set(serviceKey(key), { x: x[2], y: y + (height - box) / 2, w: w[2], h: box });
    endpoints.forEach((e, i) => places.set(endpointKey(key, e), { x: x[3], y: y + i * (box + gap), w: w[3], h: box }));
    y += height + groupGap;
  }
  const clients = model.clients.length * (box + gap) - gap;
  const height = Math.max(y - groupGap, headings + clients, headings + 2 * box);
  const middle = headings + (height - headings) / 2;
  model.clients.forEach((c, i) => places.set(clientKey(c), { x: x[0], y: middle - clients / 2 + i * (box + gap), w: w[0], h: box }));
  const portal = Math.min(height - headings, 3 * box);
  places.set('portal', { x: x[1], y: middle - portal / 2, w: w[1], h: portal });
  return { height: height + 2, narrow: false, columns: x, places };
}

function stacked(width, model) {
  const places = new Map();
  const indent = 20;
  let y = 0;
  const put = (key, depth) => {
    places.set(key, { x: depth * indent, y, w: width - depth * indent, h: box });
    y += box + gap;
  };
  model.clients.forEach(c => put(clientKey(c), 0));
  put('portal', 1);
  for (const { key, endpoints } of model.services) {
    put(serviceKey(key), 2);
    endpoints.forEach(e => put(endpointKey(key, e), 3));
  }
  return { height: y, narrow: true, columns: [], places };
}

// edge returns the four points of the curve from one position to another.
export function edge(a, b, narrow) {
  if (narrow) {
    const from = [a.x + 10, a.y + a.h], to = [b.x, b.y + b.h / 2];
    return [from, [from[0], to[1]], [from[0], to[1]], to];
  }
  const from = [a.x + a.w, a.y + a.h / 2], to = [b.x, b.y + b.h / 2];
  const bend = (from[0] + to[0]) / 2;
  return [from, [bend, from[1]], [bend, to[1]], to];
}

// along returns the point of a curve at t, from 0 to 1.
export function along([a, b, c, d], t) {
  const u = 1 - t;
  return [0, 1].map(i => u * u * u * a[i] + 3 * u * u * t * b[i] + 3 * u * t * t * c[i] + t * t * t * d[i]);
}

export function pathOf([a, b, c, d]) { return `M${a}C${b} ${c} ${d}`; }
