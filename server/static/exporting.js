// Conversations as files.

import { panes, textOf } from "./answer.js";
import { make } from "./dom.js";
import { titleOf } from "./history.js";

export function exportMarkdown(conversation) {
  const parts = conversation.messages.map(markdownOf);
  const text = [`# ${titleOf(conversation)}`, ...parts].join("\n\n");
  save(`${slug(titleOf(conversation))}.md`, "text/markdown", `${text}\n`);
}

export function exportJson(conversation, modelName) {
  saveJson(slug(titleOf(conversation)), { model: modelName, conversations: [conversation] });
}

export function exportAll(conversations, modelName) {
  saveJson("chats", { model: modelName, conversations });
}

function markdownOf(message) {
  if (message.role === "user") return `## You\n\n${message.content}`;
  const { reasoning, content } = panes(message);
  const thought = textOf(reasoning).replace(/^/gm, "> ");
  return ["## Assistant", reasoning.length ? thought : null, textOf(content)]
    .filter(Boolean)
    .join("\n\n");
}

function saveJson(name, content) {
  const dated = { exported_at: new Date().toISOString(), ...content };
  save(`${name}.json`, "application/json", JSON.stringify(dated, null, 2));
}

function save(name, type, text) {
  const href = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

function slug(title) {
  const words = title.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? ["chat"];
  return words.join("-").slice(0, 50);
}
