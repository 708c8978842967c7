// Building and finding elements.

export function find(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`The page has no #${id}.`);
  return element;
}

/** make("p.hint", {title: "…"}, "text", child): properties that start with on are listeners. */
export function make(name, properties = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag);
  element.classList.add(...classes);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "data") Object.assign(element.dataset, value);
    else if (key in element) element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

export function icon(name) {
  const svg = find("icon").content.firstElementChild.cloneNode(true);
  setIcon(svg, name);
  return svg;
}

export function setIcon(svg, name) {
  svg.querySelector("use").setAttribute("href", `#i-${name}`);
}

export function iconButton(name, label, onclick) {
  const button = make("button.icon-button", { type: "button", title: label, onclick }, icon(name));
  button.setAttribute("aria-label", label);
  return button;
}

/** A button that copies, and says for a moment that it did. */
export function copyButton(label, text) {
  const button = iconButton("copy", label, async () => {
    const copied = await copy(text());
    setIcon(button, copied ? "check" : "close");
    announce(copied ? "Copied." : "Copying failed.");
    setTimeout(() => setIcon(button, "copy"), 1500);
  });
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

// navigator.clipboard is missing where the page came over plain http from another machine.
function copyBySelection(text) {
  const area = make("textarea.for-readers", { value: text });
  const focused = document.activeElement;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return copied;
}

/** Tell those who hear the page what others see. */
export function announce(text) {
  find("announcer").textContent = text;
}

let toastTimer;

/** A notice for a few seconds, with an action if there is one. */
export function toast(text, label, action) {
  const box = find("toast");
  const hide = () => (box.hidden = true);
  box.replaceChildren(text);
  if (label) {
    const onclick = () => (hide(), action());
    box.append(make("button.text-button", { type: "button", onclick }, label));
  }
  box.hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(hide, 8000);
}

export function growWithText(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight}px`;
}

/** Enter that means "send": not a new line, and not the end of a composed character. */
export function isSend(event) {
  // 229: Safari ends a composition before it reports the key.
  const composing = event.isComposing || event.keyCode === 229;
  return event.key === "Enter" && !event.shiftKey && !composing && !onTouchScreen();
}

// Telephones have no Shift+Enter: there, Enter makes a new line and the button sends.
function onTouchScreen() {
  return matchMedia("(pointer: coarse) and (hover: none)").matches;
}
