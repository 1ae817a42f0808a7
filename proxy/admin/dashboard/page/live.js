// The connection to usher: the stream of events, a status every two seconds, and
// whether usher responds.

import { get } from './api.js';

const interval = 2000; // ms between requests for the status
const eventsPerSecond = 500; // more than a person can see; further events are only counted

// live dispatches these events:
//   step, change  detail is the API's Event
//   missed        events were omitted
//   tick          detail is the API's Status; every two seconds
//   restarted     another process responds: counters start at zero
//   back          connected, for the first time or after being lost, paused or hidden:
//                 the steps before are missing
//   state         the state has changed: connecting, on, lost or paused
class Live extends EventTarget {
  state = 'connecting';
  status = null;
  pausedSince = null;
  skipped = 0; // steps while paused
  #stream = null;
  #instance = null;
  #clockSkew = 0; // ms that usher's clock is ahead of this one
  #asking = false;

  start() {
    if (!document.hidden) this.#open();
    this.#ask();
    setInterval(() => this.#ask(), interval);
    document.addEventListener('visibilitychange', () => this.#visibility());
  }

  // reports ignores the failure of a request, since the request for the status then
  // fails, too, and live reports that.
  reports() {}

  // now returns the time by usher's clock.
  now() { return Date.now() + this.#clockSkew; }

  get paused() { return this.pausedSince !== null; }

  pause(on) {
    this.pausedSince = on ? this.now() : null;
    this.skipped = 0;
    if (on) this.#become('paused');
    else {
      this.#become('connecting');
      this.#ask().then(() => { if (!this.paused && this.state !== 'lost') this.#dispatch('back'); });
    }
  }

  // A hidden page makes no requests, to save usher's work, and because browsers
  // make at most six connections to one server.
  #visibility() {
    if (document.hidden) {
      this.#close();
    } else if (!this.#stream) {
      this.#open();
      this.#ask();
    }
  }

  // What happened without a stream is requested only when the stream is open, perhaps
  // again by the browser itself: no step is lost in between.
  #open() {
    const stream = new EventSource(`api/v1/events?rate=${eventsPerSecond}`);
    this.#stream = stream;
    stream.addEventListener('hello', e => {
      const restarted = this.#meet(JSON.parse(e.data).instance);
      if (!restarted && !this.paused) this.#dispatch('back');
    });
    for (const kind of ['step', 'change']) {
      stream.addEventListener(kind, e => {
        if (this.paused) this.skipped++;
        else this.#dispatch(kind, JSON.parse(e.data));
      });
    }
    stream.addEventListener('missed', () => { if (!this.paused) this.#dispatch('missed'); });
  }

  #close() {
    this.#stream?.close();
    this.#stream = null;
  }

  // A stream without events may be intact or not, since a browser does not show
  // heartbeats. Whether usher is running is known from responses to requests.
  async #ask() {
    if (this.#asking || document.hidden) return;
    this.#asking = true;
    try {
      const status = await get('status');
      this.#clockSkew = Date.parse(status.now) - Date.now();
      if (!this.paused || !this.status) this.status = status;
      this.#meet(status.instance);
      const lost = this.state === 'lost';
      const refused = this.#stream?.readyState === EventSource.CLOSED;
      if (lost || refused) {
        this.#close();
        this.#open();
      }
      const { now, limit } = status.subscribers;
      if (refused && now >= limit) throw new Error(`${limit} other pages are connected already, which is the maximum`);
      if (this.paused) {
        this.#become('paused');
        return;
      }
      this.#become('on');
      this.#dispatch('tick', status);
    } catch (err) {
      this.reason = err.message;
      this.#become('lost');
    } finally {
      this.#asking = false;
    }
  }

  // meet reports whether another process responds than before.
  #meet(instance) {
    const restarted = this.#instance !== null && this.#instance !== instance;
    this.#instance = instance;
    if (restarted) this.#dispatch('restarted');
    return restarted;
  }

  #become(state) {
    if (state === this.state) return;
    this.state = state;
    this.#dispatch('state');
  }

  #dispatch(type, detail) { this.dispatchEvent(new CustomEvent(type, { detail })); }
}

export const live = new Live();
