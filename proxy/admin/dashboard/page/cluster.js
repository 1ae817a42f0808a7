// The page of a cluster: selects the view, and loads its data.
//
// A view has load, which requests data, in addition to the members of a node's views.

import { ClusterOverview } from './view-cluster.js';
import { ClusterService } from './view-cluster-service.js';
import { Router } from './router.js';
import { clock } from './words.js';

const interval = 3000; // ms between a response and the next request

const router = new Router([[/^#\/service\/([^/]+)\/([^/]+)$/, ClusterService]], ClusterOverview, 'Cluster');
const live = document.getElementById('live');
const notice = document.getElementById('notice');
let answered = 0; // time of the last response
let next = 0; // timer
let asking = 0; // number of the last request; responses to earlier ones are not drawn

async function ask() {
  clearTimeout(next);
  if (document.hidden) return;
  const number = ++asking;
  const { view } = router;
  try {
    await view.load();
    answered = Date.now();
    become('on', 'live');
    notice.hidden = true;
  } catch (err) {
    if (number !== asking) return;
    become('lost', 'no response');
    notice.hidden = false;
    notice.dataset.state = 'lost';
    notice.textContent = `${err.message}.${answered ? ` What you see is from ${clock(answered)}.` : ''} Retrying.`;
  }
  if (number !== asking) return;
  router.draw();
  next = setTimeout(ask, interval);
}

function become(state, words) {
  live.dataset.state = state;
  if (live.textContent !== words) live.textContent = words;
}

addEventListener('keydown', e => {
  const search = document.getElementById('search');
  if (e.key !== '/' || e.altKey || e.ctrlKey || e.metaKey || !search || e.target.matches('input')) return;
  e.preventDefault();
  search.focus();
});

router.go();
ask();
addEventListener('hashchange', ask); // called after the router's listener
addEventListener('search-changed', ask);
document.addEventListener('visibilitychange', ask);
