// Markdown of a model's making, as elements that are safe to show.

import { marked } from "./vendor/marked.esm.js";
import DOMPurify from "./vendor/purify.es.mjs";

import { copyButton, make } from "./dom.js";

const ALLOWED = {
  ALLOWED_TAGS:
    "a blockquote br code del em h1 h2 h3 h4 h5 h6 hr li ol p pre strong table tbody td th thead tr ul"
      .split(" "),
  ALLOWED_ATTR: ["align", "class", "href", "start", "title"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  RETURN_DOM_FRAGMENT: true,
};

marked.use({
  gfm: true,
  renderer: {
    // Tags in an answer are something it talks about: show them, do not obey them.
    html: ({ text }) => escape(text),
    // A picture from elsewhere would tell its host what was read here: a link must do.
    image: ({ href, text }) => `<a href="${escape(href)}">${escape(text || href)}</a>`,
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});

function escape(text) {
  const entities = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
  return text.replace(/[&<>"']/g, (character) => entities[character]);
}

export function renderMarkdown(text) {
  const fragment = DOMPurify.sanitize(marked.parse(text), ALLOWED);
  for (const link of fragment.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer";
  }
  fragment.querySelectorAll("pre").forEach(frameCode);
  fragment.querySelectorAll("table").forEach(frameTable);
  return fragment;
}

function frameCode(pre) {
  const language = /language-(\S+)/.exec(pre.querySelector("code")?.className ?? "")?.[1] ?? "text";
  const frame = make("div.code");
  pre.replaceWith(frame);
  pre.tabIndex = 0; // so that the arrow keys can scroll it
  const button = copyButton("Copy the code", () => pre.textContent.replace(/\n$/, ""));
  frame.append(make("div.code-head", {}, make("span", {}, language), button), pre);
}

function frameTable(table) {
  const frame = make("div.table");
  table.replaceWith(frame);
  frame.append(table);
}
