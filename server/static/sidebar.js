// The list of conversations; on narrow screens it slides in over the page.

import { find, iconButton, make } from "./dom.js";
import { titleOf } from "./history.js";

const DAY = 24 * 3600 * 1000;
const narrow = matchMedia("(max-width: 800px)");

/** `actions`: open, rename(conversation, title), remove, create. */
export class Sidebar {
  constructor(actions) {
    this.actions = actions;
    this.element = find("sidebar");
    this.opener = find("open-sidebar");
    this.opener.addEventListener("click", () => this.#slide(true));
    find("close-sidebar").addEventListener("click", () => this.close());
    find("backdrop").addEventListener("click", () => this.close());
    find("new-chat").addEventListener("click", () => (this.close(), actions.create()));
    this.element.addEventListener("keydown", (event) => event.key === "Escape" && this.close());
    narrow.addEventListener("change", () => this.#slide(false));
    this.#slide(false);
  }

  close() {
    const wasOpen = narrow.matches && this.element.classList.contains("open");
    this.#slide(false);
    if (wasOpen) this.opener.focus();
  }

  #slide(open) {
    this.element.classList.toggle("open", open);
    // Out of sight also means out of the way of the Tab key and of screen readers.
    this.element.inert = narrow.matches && !open;
    find("main").inert = narrow.matches && open;
    find("backdrop").hidden = !(narrow.matches && open);
    this.opener.setAttribute("aria-expanded", String(open));
    if (open) find("close-sidebar").focus();
  }

  show(conversations, current, running) {
    const groups = Map.groupBy
      ? Map.groupBy(conversations, ageOf)
      : new Map([["Chats", conversations]]);
    const sections = [...groups].map(([age, members]) =>
      make("section", {}, make("h2", {}, age),
        make("ul", {}, ...members.map((member) => this.#item(member, current, running)))));
    find("conversations").replaceChildren(...sections);
  }

  #item(conversation, current, running) {
    const title = titleOf(conversation);
    const onclick = () => (this.close(), this.actions.open(conversation));
    const open = make("button.conversation", { type: "button", title, onclick }, title);
    if (conversation === current) open.setAttribute("aria-current", "true");
    const item = make("li", {}, open,
      iconButton("pencil", `Rename “${title}”`, () => this.#rename(item, conversation)),
      iconButton("trash", `Delete “${title}”`, () => this.actions.remove(conversation)));
    item.classList.toggle("running", running(conversation));
    return item;
  }

  #rename(item, conversation) {
    const input = make("input.rename", { value: titleOf(conversation), "aria-label": "New name" });
    let over = false;
    const finish = (keep) => {
      if (over) return; // removing the field also takes the focus away
      over = true;
      this.actions.rename(conversation, keep ? input.value.trim() : conversation.title);
    };
    input.addEventListener("blur", () => finish(true));
    input.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Enter") finish(true);
      if (event.key === "Escape") {
        event.stopPropagation();
        finish(false);
      }
    });
    item.replaceChildren(input);
    input.select();
  }
}

function ageOf({ updatedAt }) {
  const today = new Date().setHours(0, 0, 0, 0);
  if (updatedAt >= today) return "Today";
  return updatedAt >= today - 7 * DAY ? "Last days" : "Earlier";
}
