// The line to usher: the stream of events, a status every two seconds, and
// whether it is there at all.

import { get } from './api.js';

const interval = 2000; // ms between questions
const eventsPerSecond = 500; // more than anybody can see; what is beyond is counted

// live tells its listeners, by events of its own:
//   step, change  detail is the API's Event
//   missed        events were left out
//   tick          detail is the API's Status; every two seconds
//   restarted     another process answers: what was counted begins anew
//   back          there again, after having been lost, paused or hidden: steps
//                 of the time between are not told
//   state         connecting, on, lost or paused has become another one
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

  // tells takes the failure of a request about which nothing need be said: the
  // question for the status fails too, and that is told.
  tells() {}

  // now is the time as usher has it.
  now() { return Date.now() + this.#clockSkew; }

  get paused() { return this.pausedSince !== null; }

  pause(on) {
    this.pausedSince = on ? this.now() : null;
    this.skipped = 0;
    if (on) this.#become('paused');
    else {
      this.#become('connecting');
      this.#ask().then(() => this.#tell('back'));
    }
  }

  // A page that nobody sees asks for nothing: not for usher's sake alone, also
  // because browsers make six connections to one server at the most.
  #visibility() {
    if (document.hidden) {
      this.#close();
    } else if (!this.#stream) {
      this.#open(true);
      this.#ask();
    }
  }

  // After a time without a stream (again), what it has not told is looked up only when
  // it tells again: nothing is lost between the two.
  #open(again) {
    const stream = new EventSource(`api/v1/events?rate=${eventsPerSecond}`);
    this.#stream = stream;
    stream.addEventListener('hello', e => {
      this.#meet(JSON.parse(e.data).instance);
      if (again && !this.paused) this.#tell('back');
    });
    for (const kind of ['step', 'change']) {
      stream.addEventListener(kind, e => {
        if (this.paused) this.skipped++;
        else this.#tell(kind, JSON.parse(e.data));
      });
    }
    stream.addEventListener('missed', () => { if (!this.paused) this.#tell('missed'); });
  }

  #close() {
    this.#stream?.close();
    this.#stream = null;
  }

  // The stream's silence says nothing (a browser does not show heartbeats): the
  // answers to questions say whether usher is there.
  async #ask() {
    if (this.#asking || document.hidden) return;
    this.#asking = true;
    try {
      const status = await get('status');
      this.#clockSkew = Date.parse(status.now) - Date.now();
      this.status = status;
      this.#meet(status.instance);
      const lost = this.state === 'lost';
      const refused = this.#stream?.readyState === EventSource.CLOSED;
      if (lost || refused) {
        this.#close();
        this.#open(true);
      }
      const { now, limit } = status.subscribers;
      if (refused && now >= limit) throw new Error(`${limit} other pages are connected already, which is the maximum`);
      if (this.paused) {
        this.#become('paused');
        return;
      }
      this.#become('on');
      this.#tell('tick', status);
    } catch (err) {
      this.reason = err.message;
      this.#become('lost');
    } finally {
      this.#asking = false;
    }
  }

  #meet(instance) {
    if (this.#instance && this.#instance !== instance) this.#tell('restarted');
    this.#instance = instance;
  }

  #become(state) {
    if (state === this.state) return;
    this.state = state;
    this.#tell('state');
  }

  #tell(type, detail) { this.dispatchEvent(new CustomEvent(type, { detail })); }
}

export const live = new Live();
