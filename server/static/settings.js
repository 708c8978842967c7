// The settings panel: what goes with every request, remembered.

import { find } from "./dom.js";
import * as storage from "./storage.js";

const KEY = "settings";
const NUMBERS = ["temperature", "top_p", "top_k", "seed", "max_tokens"];

let values = storage.read(KEY) ?? {};

export function apiKey() {
  return values.key || null;
}

export function systemPrompt() {
  return values.system?.trim() || null;
}

/** The request's parameters; a field left empty is left out, for the model's default. */
export function sampling() {
  const parameters = {};
  for (const name of NUMBERS) if (values[name]) parameters[name] = Number(values[name]);
  if (values.thinking) {
    parameters.chat_template_kwargs = { enable_thinking: values.thinking === "on" };
  }
  return parameters;
}

/** `onchange` is called with the name of a setting changed, or "all". */
export function setUpSettings(onchange) {
  const dialog = find("settings");
  const form = dialog.querySelector("form");
  const fields = [...form.elements].filter((field) => field.name);
  const fill = () => fields.forEach((field) => (field.value = values[field.name] ?? ""));

  function keep(event) {
    const { name, value } = event.target;
    // A value out of range stays in sight, marked, but is not sent.
    values[name] = event.target.checkValidity() ? value : "";
    storage.write(KEY, values);
  }

  fill();
  find("open-settings").addEventListener("click", () => dialog.showModal());
  form.addEventListener("input", keep);
  form.addEventListener("change", (event) => onchange(event.target.name));
  dialog.addEventListener("close", fill);
  // A click on the backdrop closes; the form covers the panel itself.
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  find("reset-settings").addEventListener("click", () => {
    values = { key: values.key };
    storage.write(KEY, values);
    fill();
    onchange("all");
  });
}
