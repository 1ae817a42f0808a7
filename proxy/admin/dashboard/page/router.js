// Selects the view by the address after #.

import { morph, mount } from './dom.js';

const main = document.getElementById('main');

// Router's routes are [[path, View]…], with First for all others. A View is constructed with draw and the
// matches of the path's groups; it has title, start, stop, render and drawn. of is the page's subject, for its title.
export class Router {
  view;
  #routes;
  #of;

  constructor(routes, First, of = '') {
    this.#routes = [...routes, [/^/, First]];
    this.#of = of;
    addEventListener('hashchange', () => this.go());
    // The link that skips the header must not change the route.
    document.getElementById('skip').addEventListener('click', e => {
      e.preventDefault();
      main.focus();
    });
  }

  go() {
    const [match, View] = this.#routes.map(([path, View]) => [location.hash.match(path), View]).find(([m]) => m);
    const arrived = this.view !== undefined;
    this.view?.stop();
    this.view = new View(() => this.draw(), ...match.slice(1).map(unescaped));
    this.view.start();
    main.replaceChildren();
    this.draw();
    scrollTo(0, 0);
    if (arrived) main.focus({ preventScroll: true }); // screen readers then read the new view
    for (const a of document.querySelectorAll('nav a')) {
      if (a.hash === (location.hash || '#/')) a.setAttribute('aria-current', 'page');
      else a.removeAttribute('aria-current');
    }
  }

  // draw shows the current data.
  draw() {
    this.drawnAt = performance.now();
    morph(main, [this.view.render()]);
    mount(main);
    this.view.drawn();
    document.title = [this.view.title, this.#of, 'usher'].filter(Boolean).join(' · ');
  }
}

// unescaped returns text itself if it is not correctly escaped.
function unescaped(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
