// The newest text stays in sight, unless the reader has scrolled up.

import { find } from "./dom.js";

/** Closer to the end than this counts as being there. */
const NEAR = 48;

export class Follower {
  constructor() {
    this.scroller = find("scroller");
    this.button = find("to-bottom");
    this.following = true;
    this.top = 0;
    this.scroller.addEventListener("scroll", () => this.#look(), { passive: true });
    this.button.addEventListener("click", () => this.toEnd());
    // Text grows, pictures of the keyboard come and go: whatever changes a height.
    const observer = new ResizeObserver(() => this.#keepUp());
    observer.observe(this.scroller);
    observer.observe(find("thread"));
  }

  toEnd() {
    this.following = true;
    this.#keepUp();
  }

  #distance() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    return scrollHeight - scrollTop - clientHeight;
  }

  #look() {
    const { scrollTop } = this.scroller;
    // Only a movement upwards is the reader's: growing text also lengthens the way to the end.
    if (this.#distance() <= NEAR) this.following = true;
    else if (scrollTop < this.top) this.following = false;
    this.top = scrollTop;
    this.#showButton();
  }

  #keepUp() {
    if (this.following) this.scroller.scrollTop = this.scroller.scrollHeight;
    this.#showButton();
  }

  #showButton() {
    this.button.hidden = this.following || this.#distance() <= NEAR;
  }
}
