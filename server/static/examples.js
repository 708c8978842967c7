// What an empty chat offers.

import { find, make } from "./dom.js";

const DEMO = {
  title: "Ask the standard library",
  text: "This small model has learnt Python’s standard library by heart. Ask what something does, "
    + "for its signature, its source or an example. Then go on: “and its signature?”",
  questions: [
    "What does os.path.join do?",
    "Show me the source of textwrap.dedent",
    "What is the signature of json.dumps?",
    "Explain collections.Counter",
  ],
};

const GENERIC = {
  title: "What would you like to know?",
  text: "Everything you ask stays between this browser and this server.",
  questions: [
    "Explain speculative decoding to a programmer in three paragraphs",
    "Write a Python function that merges overlapping intervals, with tests",
    "Compare TCP and QUIC in a table",
    "Help me word a polite reminder about an unpaid invoice",
  ],
};

/** `ask` is called with the question chosen. */
export function showExamples(modelName, ask) {
  const { title, text, questions } = modelName === "dflash-demo" ? DEMO : GENERIC;
  find("empty-title").textContent = title;
  find("empty-text").textContent = text;
  const buttons = questions.map((question) =>
    make("button.example", { type: "button", onclick: () => ask(question) }, question));
  find("examples").replaceChildren(...buttons);
}
