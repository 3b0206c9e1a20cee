// Polls for the data of a page once a second while the page is visible, and shows if nothing answers.

import { byId, setText } from "./dom.js";
import * as format from "./format.js";

const POLL_MS = 1000;
const PATIENCE_MS = 5000;

// Shown from the second failure on: a single lost poll means nothing.
const FAILURES_TILL_LOST = 2;

export class Poller {
  #url;
  #show;
  #lostText;
  #failureCount = 0;
  #answeredAt = null;
  #timer = null;
  #pending = null;

  /**
   * `url` returns the path of the next poll, `show` takes its answer. `lostText` returns the text of the
   * banner for the time of the last answer, or for null before the first one.
   */
  constructor(url, show, lostText) {
    this.#url = url;
    this.#show = show;
    this.#lostText = lostText;
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) clearTimeout(this.#timer);
      else this.poll();
    });
  }

  /** Fetches all data of the page, one poll at a time: a poll that is under way is given up. */
  async poll() {
    clearTimeout(this.#timer);
    this.#pending?.abort();
    const request = new AbortController();
    this.#pending = request;
    const patience = setTimeout(() => request.abort(), PATIENCE_MS);
    try {
      const answer = await fetchJson(this.#url(), request.signal);
      if (this.#pending !== request) return;
      this.#show(answer);
      this.#failureCount = 0;
      this.#answeredAt = Date.now();
    } catch (error) {
      if (this.#pending !== request) return;
      this.#failureCount += 1;
      if (!(error instanceof TypeError) && error.name !== "AbortError") console.warn(error);
    } finally {
      clearTimeout(patience);
    }
    this.#showConnection();
    this.#pending = null;
    if (!document.hidden) this.#timer = setTimeout(() => this.poll(), POLL_MS);
  }

  #showConnection() {
    const isLost = this.#failureCount >= FAILURES_TILL_LOST;
    const isNew = this.#answeredAt === null;
    const banner = byId("lost");
    const status = byId("connection");
    document.body.classList.toggle("stale", isLost);
    status.dataset.state = isLost ? "lost" : isNew ? "waiting" : "live";
    setText(status, isLost ? "no connection" : isNew ? "connecting" : "live");
    if (isLost) setText(banner, this.#lostText(isNew ? null : format.clock(this.#answeredAt / 1000)));
    banner.hidden = !isLost;
  }
}

async function fetchJson(url, signal) {
  const response = await fetch(url, { signal, cache: "no-store" });
  if (!response.ok) throw new Error(`${url}: HTTP ${response.status}`);
  return response.json();
}
