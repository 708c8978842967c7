// The figures under an answer: the strip, the ribbon of blocks, the histogram.

import { figures } from "./answer.js";
import { make } from "./dom.js";

/** A ribbon shows at most so many of the last steps. */
const MAX_BARS = 160;

export function describeStep(answer, step) {
  const pieces = answer.pieces.filter((piece) => piece.step === step);
  const characters = pieces.reduce((total, piece) => total + piece.length, 0);
  const tokens = answer.steps[step];
  const counts = [tokens == null ? null : plural(tokens, "token"), plural(characters, "character")];
  return `Block ${step + 1}: ${counts.filter(Boolean).join(", ")}`;
}

export function strip(answer) {
  const figure = figures(answer);
  return [
    shown(figure.tokensPerSecond, rate, "tokens/s", "While decoding, as this browser saw it"),
    shown(figure.ttft, seconds, "to first token", "From sending to the first text"),
    shown(figure.tokensPerStep, rate, "tokens/step", acceptanceTitle(figure)),
    shown(figure.tokens, String, `tokens in ${plural(figure.steps, "step")}`, "The whole answer"),
    figure.synthetic
      ? make("span.synthetic", { title: "Drafts were accepted by chance, to measure speed" },
          "synthetic acceptance")
      : null,
  ].filter(Boolean);
}

function acceptanceTitle({ exact }) {
  return exact
    ? "Mean acceptance length: accepted drafts plus one, by the server’s own count"
    : "Tokens that a step brings, so far";
}

function shown(value, format, label, title) {
  if (value === null) return null;
  return make("span.figure", { title }, make("b", {}, format(value)), ` ${label}`);
}

/** One bar for each step, as high as its tokens. `bars` are those there already. */
export function growRibbon(ribbon, answer) {
  const { steps } = answer;
  const highest = Math.max(answer.speculation ? answer.speculation.num_spec_tokens + 1 : 8, ...steps);
  // Without a drafter every step brings one token: nothing to see.
  ribbon.hidden = steps.length < 2 || Math.max(...steps) <= 1;
  if (ribbon.hidden) return;
  const from = Math.max(0, steps.length - MAX_BARS);
  while (ribbon.firstChild && Number(ribbon.firstChild.dataset.step) < from) {
    ribbon.firstChild.remove();
  }
  for (let step = from + ribbon.childElementCount; step < steps.length; step++) {
    const title = `Block ${step + 1}: ${plural(steps[step] ?? 1, "token")}`;
    ribbon.append(make("i", { title, data: { step, hue: step % 2 } }));
  }
  for (const bar of ribbon.children) {
    bar.style.height = `${(100 * (steps[bar.dataset.step] ?? 1)) / highest}%`;
  }
  ribbon.setAttribute("aria-label", `Tokens of each step: ${steps.slice(from).join(", ")}`);
}

/** How many steps accepted 0, 1, … K drafts. */
export function histogram({ acceptance_histogram: counts, ...figures }) {
  const most = Math.max(...counts, 1);
  const bars = counts.map((count, accepted) => {
    const bar = make("i", { title: `${accepted} accepted: ${plural(count, "step")}` });
    bar.style.height = `${(100 * count) / most}%`;
    return make("span", {}, bar);
  });
  const label = counts.map((count, accepted) => `${accepted}: ${count}`).join(", ");
  const rate = Math.round(100 * figures.draft_acceptance_rate);
  return make("figure.histogram", {},
    make("div.bars", { role: "img", "aria-label": `Steps by accepted drafts: ${label}` }, ...bars),
    make("div.axis", { "aria-hidden": "true" },
      make("span", {}, "0"), make("span", {}, "drafts accepted in a step"),
      make("span", {}, String(counts.length - 1))),
    make("figcaption", {},
      `${figures.num_accepted_draft_tokens} of ${figures.num_draft_tokens} drafts accepted (${rate} %)`
      + ` in ${plural(figures.num_spec_steps, "speculative step")}`
      + (figures.synthetic ? ", by chance (synthetic)" : "")));
}

function plural(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

function rate(value) {
  return value >= 100 ? value.toFixed(0) : value.toFixed(value >= 20 ? 1 : 2);
}

function seconds(value) {
  return value < 1 ? `${Math.max(1, Math.round(value * 1000))} ms` : `${value.toFixed(2)} s`;
}
