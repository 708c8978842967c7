// The page: which conversation is open, which answers are under way, and what a key press does.

import { newAnswer, panes, Recorder, textOf } from "./answer.js";
import { ApiError, checkReady, loadModel, streamChat } from "./api.js";
import { announce, find, growWithText, isSend, toast } from "./dom.js";
import { showExamples } from "./examples.js";
import { exportAll, exportJson, exportMarkdown } from "./exporting.js";
import * as history from "./history.js";
import { AnswerView, UserView } from "./message_view.js";
import { Follower } from "./scroll.js";
import * as settings from "./settings.js";
import { Sidebar } from "./sidebar.js";
import * as storage from "./storage.js";

const SAVE_EVERY = 2000; // milliseconds, while an answer streams
const LOOK_EVERY = 3000; // milliseconds, while the server is not ready

let model = null;
let tinted = storage.read("tint") ?? false;
let conversations = history.loadConversations();
let current = conversations.find(({ id }) => `#${id}` === location.hash) ?? null;
let views = new Map(); // of the messages of the open conversation
const runs = new Map(); // conversation -> AbortController: they go on in the background

const prompt = find("prompt");
const follower = new Follower();
const sidebar = new Sidebar({ open, rename, remove, create: () => open(null) });

// ---- conversations

function open(conversation) {
  current = conversation;
  const address = conversation ? `#${conversation.id}` : location.pathname + location.search;
  window.history.replaceState(null, "", address);
  views = new Map();
  find("thread").replaceChildren();
  showThread();
  showList();
  follower.toEnd();
  if (matchMedia("(hover: hover)").matches) prompt.focus();
}

function showList() {
  const named = conversations.filter(({ messages }) => messages.length);
  sidebar.show(named, current, (conversation) => runs.has(conversation));
  const running = runs.has(current);
  find("send").hidden = running;
  find("stop").hidden = !running;
  find("export").disabled = !named.length;
  document.title = current ? `${history.titleOf(current)} · DFlash chat` : "DFlash chat";
}

function showThread() {
  const messages = current?.messages ?? [];
  for (const [message, view] of views) {
    if (messages.includes(message)) continue;
    view.element.remove();
    views.delete(message);
  }
  for (const message of messages) {
    if (views.has(message)) continue;
    const view = makeView(message);
    views.set(message, view);
    find("thread").append(view.element);
  }
  find("empty").hidden = messages.length > 0;
}

function makeView(message) {
  if (message.role === "user") return new UserView(message, { resend: (text) => edit(message, text) });
  return new AnswerView(message, { regenerate: () => regenerate(message), tinted: () => tinted });
}

function save(conversation) {
  if (!conversations.includes(conversation)) return; // deleted meanwhile
  if (!history.saveConversation(conversation)) {
    toast("This browser has no room for more chats: this one will be gone after a reload.");
  }
}

function rename(conversation, title) {
  conversation.title = title;
  save(conversation);
  showList();
}

function remove(conversation) {
  runs.get(conversation)?.abort();
  conversations = conversations.filter((other) => other !== conversation);
  history.deleteConversation(conversation);
  if (current === conversation) open(null);
  showList();
  toast(`Deleted “${history.titleOf(conversation)}”.`, "Undo", () => {
    conversations = [conversation, ...conversations].sort((a, b) => b.updatedAt - a.updatedAt);
    save(conversation);
    showList();
  });
}

// ---- asking

function ask(text) {
  if (!current) {
    current = history.newConversation();
    conversations = [current, ...conversations];
    window.history.replaceState(null, "", `#${current.id}`);
  }
  current.messages.push({ role: "user", content: text });
  answer(current);
}

function regenerate(message) {
  cutFrom(message);
  answer(current);
}

function edit(message, text) {
  cutFrom(message);
  current.messages.push({ role: "user", content: text });
  answer(current);
  prompt.focus();
}

function cutFrom(message) {
  runs.get(current)?.abort();
  current.messages.splice(current.messages.indexOf(message));
}

/** Stream an answer to the conversation's last message. */
async function answer(conversation) {
  const message = newAnswer();
  const body = request(conversation);
  conversation.messages.push(message);
  conversation.updatedAt = Date.now();
  conversations.sort((a, b) => b.updatedAt - a.updatedAt);
  const run = new AbortController();
  runs.set(conversation, run);
  showThread();
  showList();
  save(conversation);
  follower.toEnd();
  announce("Answering.");
  try {
    await record(conversation, message, body, run.signal);
    message.state = "done";
    announce("The answer is complete.");
  } catch (error) {
    fail(message, error);
  }
  // Regenerating may have put another run in this one's place.
  if (runs.get(conversation) === run) runs.delete(conversation);
  save(conversation);
  views.get(message)?.update();
  showList();
}

async function record(conversation, message, body, signal) {
  const recorder = new Recorder(message);
  let savedAt = Date.now();
  for await (const chunk of streamChat(body, { key: settings.apiKey(), signal })) {
    recorder.add(chunk);
    views.get(message)?.update();
    if (Date.now() - savedAt > SAVE_EVERY) {
      savedAt = Date.now();
      save(conversation);
    }
  }
}

function fail(message, error) {
  if (error.name === "AbortError") {
    message.state = "stopped";
    announce("Stopped.");
    return;
  }
  if (!(error instanceof ApiError)) console.error(error);
  const { title = "The page failed", message: text, status = 0, retryAfter = null } = error;
  const retryAt = retryAfter === null ? null : Date.now() + 1000 * retryAfter;
  message.error = { title, message: text, status, retryAt };
  message.state = "failed";
  lookForModel();
}

function request(conversation) {
  const system = settings.systemPrompt();
  const messages = conversation.messages
    .map((message) => ({ role: message.role, content: sentAgain(message) }))
    .filter(({ content }) => content);
  if (system) messages.unshift({ role: "system", content: system });
  return { ...(model ? { model: model.id } : {}), messages, ...settings.sampling() };
}

// Earlier thoughts are not sent again: models are trained to go without them.
function sentAgain(message) {
  return message.role === "user" ? message.content : textOf(panes(message).content);
}

// ---- the composer

function send() {
  const text = prompt.value.trim();
  if (!text || runs.has(current)) return;
  prompt.value = "";
  growWithText(prompt);
  ask(text);
}

find("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
find("stop").addEventListener("click", () => {
  runs.get(current)?.abort();
  prompt.focus();
});
prompt.addEventListener("input", () => growWithText(prompt));
prompt.addEventListener("keydown", (event) => {
  if (event.key === "Escape") runs.get(current)?.abort();
  if (!isSend(event)) return;
  event.preventDefault();
  send();
});

// ---- the header

function showTint() {
  find("tint").setAttribute("aria-checked", String(tinted));
  for (const view of views.values()) view.update();
}

find("tint").addEventListener("click", () => {
  tinted = !tinted;
  storage.write("tint", tinted);
  showTint();
});

find("export-menu").addEventListener("click", (event) => {
  const kind = event.target.dataset.export;
  if (!kind) return;
  find("export-menu").hidePopover();
  if (kind === "all") exportAll(conversations, model?.id ?? null);
  else if (!current) toast("Open a chat first.");
  else if (kind === "json") exportJson(current, model?.id ?? null);
  else exportMarkdown(current);
});

function showModel(state, name, title) {
  find("model").querySelector(".dot").dataset.state = state;
  find("model-name").textContent = name;
  find("model").title = title;
}

let nextLook;

/** Name the model, and look again until it is ready. */
async function lookForModel() {
  clearTimeout(nextLook);
  try {
    model = await loadModel(settings.apiKey());
    showExamples(model.id, ask);
    await checkReady();
    model = await loadModel(settings.apiKey()); // its length is known only now
    const room = model.max_model_len ? `Room for ${model.max_model_len} tokens` : "";
    showModel("ready", model.id, room);
  } catch (error) {
    const state = error.status === 503 ? "loading" : "failed";
    showModel(state, model?.id ?? error.title, `${error.title}: ${error.message}`);
    if (!model) showExamples(null, ask);
    nextLook = setTimeout(lookForModel, LOOK_EVERY);
  }
}

settings.setUpSettings((name) => name === "key" && lookForModel());

// Another tab added, changed or deleted a chat. Those in use here are left alone.
addEventListener("storage", () => {
  const mine = conversations.filter((mine) => mine === current || runs.has(mine));
  const ids = new Set(mine.map(({ id }) => id));
  const others = history.loadConversations().filter(({ id }) => !ids.has(id));
  conversations = [...mine, ...others].sort((a, b) => b.updatedAt - a.updatedAt);
  showList();
});
addEventListener("pagehide", () => [...runs.keys()].forEach(save));

showTint();
open(current);
lookForModel();
