// The page as a whole: selects and draws the view, and handles keys and the
// header.
//
// Data comes from three modules: live (events and a status every two seconds),
// services (all of them, a page at a time) and details (the few on the screen).
// A view turns data into elements (render), and dom.js changes the page where it
// differs.

import { connections } from './connections.js';
import { demo } from './demo.js';
import { details } from './details.js';
import { h, morph } from './dom.js';
import { ends, loadEnds } from './ends.js';
import { live } from './live.js';
import { Router } from './router.js';
import { services } from './services.js';
import { OneConnection } from './view-connection.js';
import { Connections } from './view-connections.js';
import { Overview } from './view-overview.js';
import { OneService } from './view-service.js';
import { clock, plural } from './words.js';

const pauseButton = document.getElementById('pause');
const notice = document.getElementById('notice');

const routes = [
  [/^#\/service\/([^/]+)\/([^/]+)$/, OneService],
  [/^#\/connection\/(\d+)$/, OneConnection],
  [/^#\/connections$/, Connections],
];

// Behind kubectl usher dashboard, this is the page of one of several nodes.
const node = decodeURIComponent(location.pathname.match(/\/nodes\/([^/]+)\/$/)?.[1] ?? '');
if (node) document.querySelector('nav').prepend(h('a', { href: '../../' }, 'Cluster'), h('span', { class: 'of-node', title: node }, node));

const router = new Router(routes, Overview, node);
const draw = () => router.draw();

// soon draws at a limited rate: hundreds of steps may arrive at a time.
let drawing = 0;

function soon() {
  if (drawing || live.paused) return;
  drawing = setTimeout(() => {
    drawing = 0;
    if (!live.paused) draw();
  }, Math.max(0, 250 - (performance.now() - router.drawnAt)));
}

live.addEventListener('step', ({ detail: e }) => {
  connections.step(e);
  router.view.step?.(e);
  soon();
});

live.addEventListener('change', ({ detail: e }) => {
  router.view.change?.(e);
  soon();
});

// Before the first load, and after omitted steps, the assembled connections lack steps.
let stepsMissing = true;
live.addEventListener('missed', () => {
  stepsMissing = true;
  router.view.missed?.();
});

live.addEventListener('tick', ({ detail: status }) => {
  router.view.tick?.(status);
  soon();
  request(!services.complete);
});

// request requests all Services or some, and everything else that may have changed or
// is still missing because a request failed.
async function request(allServices) {
  try {
    await Promise.all([
      allServices ? services.load(soon) : services.refresh(),
      ends.size === 0 && loadEnds(),
      details.refresh(),
      demo.refresh(),
      stepsMissing && loadConnections(),
    ]);
  } catch { /* live reports it */ }
  soon();
}

async function loadConnections() {
  stepsMissing = false;
  try {
    await connections.load();
  } catch (err) {
    stepsMissing = true;
    throw err;
  }
}

function load() {
  stepsMissing = true;
  request(true);
}

// A paused page keeps what it shows, also if usher is restarted.
let restartedInPause = false;

live.addEventListener('back', () => {
  if (restartedInPause) return restarted();
  load();
  router.view.back?.();
});
live.addEventListener('restarted', () => {
  if (live.paused) restartedInPause = true;
  else restarted();
});

function restarted() {
  restartedInPause = false;
  connections.forget();
  services.forget();
  details.forget();
  router.view.restarted?.();
  load();
  say('usher was restarted: its counters start at 0.', 8000);
}

live.addEventListener('state', () => {
  const words = { connecting: 'connecting', on: 'live', paused: 'paused', lost: 'no connection' };
  const pill = document.getElementById('live');
  pill.textContent = words[live.state];
  pill.dataset.state = live.state;
  pauseButton.textContent = live.paused ? 'Resume' : 'Pause';
  pauseButton.setAttribute('aria-pressed', String(live.paused));
  if (live.state === 'lost') {
    say(`Lost the connection to usher (${live.reason}). ${live.status ? `What you see is from ${clock(live.status.now)}. ` : ''}`
      + 'Retrying every 2 seconds.');
  } else if (live.state === 'paused') {
    say('The page is paused. Connections continue and are counted when you resume.');
  } else if (live.state === 'on' && untilLive) {
    say('The page is live again.', 3000);
  }
  draw();
});

demo.addEventListener('changed', draw);

let sayTimer;
let untilLive = false; // the notice is about a page that is not live

// say shows a line below the header, for some time or until the page is live again. A
// screen reader reads text when it changes, but not changes of more.
function say(text, time, more = '') {
  clearTimeout(sayTimer);
  untilLive = !time;
  notice.hidden = text === '';
  morph(notice, [h('span', null, text), h('span', { 'aria-live': 'off' }, more)]);
  notice.dataset.state = live.state;
  if (time) sayTimer = setTimeout(() => { notice.hidden = true; }, time);
}

pauseButton.addEventListener('click', () => live.pause(!live.paused));
setInterval(() => {
  if (live.state === 'paused') say(`The page has been paused since ${clock(live.pausedSince)}`, 0, `; ${plural(live.skipped, 'step')} since then.`);
  else if (live.state === 'on' && document.querySelector('.countdown')) soon();
}, 1000);

addEventListener('keydown', e => {
  if (e.altKey || e.ctrlKey || e.metaKey) return;
  const search = document.getElementById('search');
  const writing = e.target.matches('input, select, textarea');
  if (e.key === '/' && !writing && search) {
    e.preventDefault();
    search.focus();
  } else if (e.key === 'p' && !writing) {
    live.pause(!live.paused);
  } else if (e.key === 'Escape' && e.target === search) {
    search.value = '';
    search.dispatchEvent(new Event('input'));
  }
});

const key = name => h('kbd', null, name);
const command = text => h('code', null, text);
document.getElementById('foot').append(
  h('span', null, 'Keys: ', key('/'), ' searches, ', key('p'), ' pauses, ', key('↑'), ' ', key('↓'), ' move through a table.'),
  h('span', null, 'The same in a terminal: ', command('usher get services'), ', ', command('usher trace'), ', ', command('kubectl usher top'), '.'),
  h('span', null, 'For programs: ', h('a', { href: 'api/v1/openapi.json' }, 'the API'), '.'));

router.go();
live.start();
