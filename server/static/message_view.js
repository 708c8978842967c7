// One message on the page.

import { panes, textOf } from "./answer.js";
import { copyButton, growWithText, iconButton, isSend, make } from "./dom.js";
import { describeStep, growRibbon, histogram, strip } from "./figures.js";
import { renderMarkdown } from "./markdown.js";

/** `resend(text)` is called with the text as edited. */
export class UserView {
  constructor(message, { resend }) {
    this.message = message;
    this.resend = resend;
    this.element = make("article.message.user", { "aria-label": "You" });
    this.#show();
  }

  update() {}

  #show() {
    this.edit = iconButton("pencil", "Edit and send again", () => this.#edit());
    this.element.replaceChildren(
      make("div.bubble", {}, this.message.content),
      make("div.actions", {}, copyButton("Copy", () => this.message.content), this.edit));
  }

  #edit() {
    const area = make("textarea", { value: this.message.content, "aria-label": "Edit the message" });
    const cancel = () => (this.#show(), this.edit.focus());
    const send = () => area.value.trim() && this.resend(area.value.trim());
    area.addEventListener("input", () => growWithText(area));
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !event.isComposing) cancel();
      if (!isSend(event)) return;
      event.preventDefault();
      send();
    });
    this.element.replaceChildren(make("div.editor", {}, area,
      make("div.buttons", {},
        make("button.text-button", { type: "button", onclick: cancel }, "Cancel"),
        make("button.main-button", { type: "button", onclick: send }, "Send"))));
    growWithText(area);
    area.focus();
  }
}

const HINT = "Point at a block to see what it brought.";

/** `regenerate()` asks again; `tinted()` says how text is to be shown. */
export class AnswerView {
  constructor(message, { regenerate, tinted }) {
    Object.assign(this, { message, regenerate, tinted });
    this.reasoning = make("div.text");
    this.summary = make("summary");
    this.thoughts = make("details.reasoning", { hidden: true }, this.summary, this.reasoning);
    this.text = make("div.text");
    this.waiting = make("div.waiting", { "aria-hidden": "true" }, make("i"), make("i"), make("i"));
    this.note = make("div.note");
    this.strip = make("div.strip");
    this.ribbon = make("div.ribbon", { role: "img", hidden: true });
    this.block = make("div.block-note", { "aria-hidden": "true" }, HINT);
    this.histogram = make("div");
    this.actions = make("div.actions", {},
      copyButton("Copy the answer", () => textOf(panes(message).content)),
      iconButton("again", "Ask again", regenerate));
    this.element = make("article.message.assistant", { "aria-label": "Answer" },
      this.thoughts, this.text, this.waiting, this.note,
      make("footer", {},
        this.strip, this.ribbon, this.block, this.histogram, this.actions));
    this.#pointAtBlocks();
    this.render();
  }

  /** Soon, and no more often than the page can bear: a long answer takes its time to render. */
  update() {
    if (this.scheduled) return;
    this.scheduled = true;
    setTimeout(() => requestAnimationFrame(() => this.render()), 4 * (this.cost ?? 0));
  }

  render() {
    this.scheduled = false;
    const startedAt = performance.now();
    const { message } = this;
    const running = message.state === "waiting" || message.state === "streaming";
    const { reasoning, content } = panes(message);
    this.element.dataset.state = message.state;
    this.element.setAttribute("aria-busy", String(running));
    this.thoughts.hidden = !reasoning.length;
    const thinking = running && !content.length;
    this.summary.textContent = thinking ? "Thinking…" : "Thought";
    this.#showText(this.reasoning, reasoning);
    this.#showText(this.text, content);
    this.waiting.hidden = !(running && !content.length && !reasoning.length);
    this.#showNote();
    this.#showFigures(running);
    // An error without any text has its own button, and nothing to copy.
    this.actions.hidden = running || (message.state === "failed" && !content.length);
    this.cost = Math.min(performance.now() - startedAt, 250);
  }

  #showText(pane, pieces) {
    const tinted = this.tinted();
    const text = textOf(pieces);
    if (pane.shown === text && pane.tinted === tinted) return;
    pane.classList.toggle("tinted", tinted);
    pane.classList.toggle("markdown", !tinted);
    // Rare: a tag that came in two chunks turned out not to be text. Then all is shown anew.
    const grows = pane.tinted === tinted && text.startsWith(pane.shown ?? "");
    if (!tinted) pane.replaceChildren(renderMarkdown(text));
    else if (grows) pane.append(...pieces.slice(pane.childElementCount).map(this.#span));
    else pane.replaceChildren(...pieces.map(this.#span));
    Object.assign(pane, { shown: text, tinted });
  }

  #span = ({ step, text }) => {
    const tokens = this.message.steps[step];
    const title = describeStep(this.message, step);
    return make("span.step", { title, data: { step, hue: step % 2, tokens: tokens ?? "" } }, text);
  };

  #showNote() {
    const { state, finishReason, error } = this.message;
    if (this.noted === state) return;
    this.noted = state;
    this.note.replaceChildren();
    if (state === "failed") this.note.append(this.#errorCard(error));
    else if (state === "stopped") this.note.append("Stopped.");
    else if (finishReason === "length") {
      this.note.append("Cut off: the limit of tokens is reached.");
    }
  }

  #errorCard({ title, message, status, retryAt }) {
    const wait = make("span.wait");
    const retry = make("button.main-button", { type: "button", onclick: this.regenerate }, "Try again");
    const card = make("div.error", { role: "alert" },
      make("strong", {}, title), make("p", {}, message),
      status === 401 ? make("p", {}, "Enter it in the settings.") : "",
      make("div.buttons", {}, retry, wait));
    if (retryAt) countDown(wait, retryAt);
    return card;
  }

  #showFigures(running) {
    const { message } = this;
    this.strip.replaceChildren(...strip(message));
    growRibbon(this.ribbon, message);
    this.block.hidden = !this.tinted() || message.steps.length === 0;
    const bars = !running && this.tinted() && message.speculation;
    this.histogram.replaceChildren(...(bars ? [histogram(message.speculation)] : []));
  }

  // Text and ribbon point at each other: one block at a time, by pointer or by tap.
  #pointAtBlocks() {
    const point = (event) => {
      const step = event.target.closest?.("[data-step]")?.dataset.step;
      if (step === this.pointed) return;
      this.pointed = step;
      for (const lit of this.element.querySelectorAll(".lit")) lit.classList.remove("lit");
      this.block.textContent = step ? describeStep(this.message, Number(step)) : HINT;
      if (step === undefined) return;
      for (const part of this.element.querySelectorAll(`[data-step="${step}"]`)) {
        part.classList.add("lit");
      }
    };
    this.element.addEventListener("pointerover", point);
    this.element.addEventListener("pointerleave", point);
  }
}

function countDown(place, retryAt) {
  const seconds = Math.ceil((retryAt - Date.now()) / 1000);
  if (seconds <= 0) {
    place.textContent = "";
    return;
  }
  place.textContent = `The server asked to wait ${seconds} s.`;
  setTimeout(() => countDown(place, retryAt), 1000);
}
