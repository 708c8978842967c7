// What is recorded of an answer while it streams, and what can be told from the record.
//
// A step is one pass of the model: it brings a block of tokens, as one chunk of the stream. A chunk
// whose count of tokens has not grown (reasoning and answer of the same step) joins the last step.

/** An answer without text yet. It is stored as it is: plain data only. */
export function newAnswer() {
  return {
    role: "assistant",
    content: "",
    reasoning: "",
    pieces: [], // {step, field, length}: which step brought which stretch of content or reasoning
    steps: [], // tokens that each step brought; null if the server does not count
    state: "waiting", // then streaming, and at last done, stopped or failed
    finishReason: null,
    timing: { ttft: null, decoding: 0 }, // seconds
    usage: null,
    speculation: null, // the server's own figures, once the answer is complete
    error: null, // {title, message, status, retryAt}
  };
}

/** Feeds chunks into an answer. `now` is a clock in milliseconds. */
export class Recorder {
  constructor(answer, now = () => performance.now()) {
    this.answer = answer;
    this.now = now;
    this.sentAt = now();
    this.firstAt = null;
    this.counted = 0;
  }

  add(chunk) {
    const { answer } = this;
    const [choice] = chunk.choices;
    if (chunk.usage) answer.usage = chunk.usage;
    if (chunk.metrics) answer.speculation = chunk.metrics.speculative_decoding ?? null;
    if (!choice) return;
    const reasoning = choice.delta.reasoning_content ?? choice.delta.reasoning ?? "";
    const content = choice.delta.content ?? "";
    this.#count(chunk.usage, reasoning + content);
    this.#append("reasoning", reasoning);
    this.#append("content", content);
    if (choice.finish_reason) answer.finishReason = choice.finish_reason;
  }

  #count(usage, text) {
    const { answer } = this;
    const tokens = usage ? usage.completion_tokens - this.counted : null;
    if (tokens === 0 || (tokens === null && !text)) return;
    this.counted += tokens ?? 0;
    answer.steps.push(tokens);
    answer.state = "streaming";
    const now = this.now();
    this.firstAt ??= now;
    answer.timing.ttft ??= (now - this.sentAt) / 1000;
    answer.timing.decoding = (now - this.firstAt) / 1000;
  }

  #append(field, text) {
    if (!text) return;
    const { answer } = this;
    answer[field] += text;
    answer.pieces.push({ step: Math.max(answer.steps.length - 1, 0), field, length: text.length });
  }
}

/** The answer's text in two panes, each a list of `{step, text}`. */
export function panes(answer) {
  const { thought, rest } = thinking(answer.content);
  const reasoning = [];
  const content = [];
  const at = { content: 0, reasoning: 0 };
  for (const { step, field, length } of answer.pieces) {
    const [from, to] = [at[field], at[field] + length];
    at[field] = to;
    if (field === "reasoning") push(reasoning, step, answer.reasoning, from, to);
    else {
      push(reasoning, step, answer.content, Math.max(from, thought[0]), Math.min(to, thought[1]));
      push(content, step, answer.content, Math.max(from, rest), to);
    }
  }
  return { reasoning, content };
}

function push(pieces, step, text, from, to) {
  if (from < to) pieces.push({ step, text: text.slice(from, to) });
}

export function textOf(pieces) {
  return pieces.map((piece) => piece.text).join("");
}

/** Where a `<think>` that nobody parsed out on the way stands in the content, if it leads it. */
function thinking(content) {
  const opening = /^\s*<think>\s*/.exec(content);
  if (!opening) return { thought: [0, 0], rest: 0 };
  const start = opening[0].length;
  const closing = /\s*<\/think>\s*/.exec(content.slice(start));
  if (!closing) return { thought: [start, content.length], rest: content.length };
  const end = start + closing.index;
  return { thought: [start, end], rest: end + closing[0].length };
}

/** Figures of an answer, complete or not; null where they cannot be known (yet). */
export function figures(answer) {
  const { steps, timing, usage, speculation } = answer;
  const counted = steps.length > 0 && steps.every((tokens) => tokens !== null);
  const tokens = usage?.completion_tokens ?? (counted ? sum(steps) : null);
  // The first token comes from reading the prompt: that step speculates nothing.
  const decoded = counted ? sum(steps.slice(1)) : null;
  const running = decoded && steps.length > 1 ? decoded / (steps.length - 1) : null;
  return {
    tokens,
    steps: steps.length,
    ttft: timing.ttft,
    tokensPerSecond: decoded && timing.decoding > 0 ? decoded / timing.decoding : null,
    tokensPerStep: speculation?.mean_acceptance_length ?? running,
    exact: Boolean(speculation),
    synthetic: Boolean(speculation?.synthetic),
  };
}

function sum(numbers) {
  return numbers.reduce((total, number) => total + number, 0);
}
