// Conversations, kept in this browser: one entry each, so that two tabs do not undo each other.

import * as storage from "./storage.js";

const PREFIX = "conversation:";
const TITLE_LENGTH = 60;

export function newConversation() {
  const now = Date.now();
  return { id: newId(), title: "", createdAt: now, updatedAt: now, messages: [] };
}

// Not crypto.randomUUID: it is missing where the page came over plain http from another machine.
function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(9));
  return Array.from(bytes, (byte) => byte.toString(36).padStart(2, "0")).join("");
}

/** The latest first. */
export function loadConversations() {
  return storage
    .keys(PREFIX)
    .map((key) => storage.read(key))
    .filter((conversation) => Array.isArray(conversation?.messages))
    .map(settle)
    .sort((a, b) => b.updatedAt - a.updatedAt);
}

// The page was closed in the middle of an answer: nobody writes on at it.
function settle(conversation) {
  for (const message of conversation.messages) {
    if (message.state === "waiting" || message.state === "streaming") message.state = "stopped";
  }
  return conversation;
}

/** False if the browser has no room for it. */
export function saveConversation(conversation) {
  return storage.write(PREFIX + conversation.id, conversation);
}

export function deleteConversation(conversation) {
  storage.remove(PREFIX + conversation.id);
}

/** What the list calls it: the name given, or how its first message begins. */
export function titleOf({ title, messages }) {
  const text = title || (messages[0]?.content ?? "").replace(/\s+/g, " ").trim();
  return text.length > TITLE_LENGTH ? `${text.slice(0, TITLE_LENGTH - 1)}…` : text || "New chat";
}
