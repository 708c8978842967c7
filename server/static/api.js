// The server's API.

import { eventData } from "./sse.js";

/** An error fit to be shown. `retryAfter`: seconds that the server asked to wait, or null. */
export class ApiError extends Error {
  constructor(title, message, { status = 0, code = null, retryAfter = null } = {}) {
    super(message);
    Object.assign(this, { title, status, code, retryAfter });
  }
}

/** The model served: `{id, max_model_len}`. */
export async function loadModel(key) {
  const response = await request("v1/models", { headers: headers(key) });
  const { data } = await response.json();
  return data[0];
}

/** Resolves when the model answers requests; raises ApiError while it does not. */
export async function checkReady() {
  await request("ready");
}

/** The chunks of a streamed answer. Ends only after [DONE]; everything else raises. */
export async function* streamChat(body, { key, signal }) {
  const response = await request("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers(key) },
    // The running count of tokens tells how many each chunk brought.
    body: JSON.stringify({
      ...body,
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
    }),
    signal,
  });
  let complete = false;
  try {
    // Read on after [DONE]: to let go before the end would look like a stop to the server.
    for await (const data of eventData(response.body)) {
      complete ||= data === "[DONE]";
      if (complete) continue;
      const chunk = JSON.parse(data);
      if (chunk.error) throw fromBody(chunk, 200, null);
      yield chunk;
    }
  } catch (error) {
    if (error instanceof ApiError || error.name === "AbortError") throw error;
    throw brokenOff();
  }
  if (!complete) throw brokenOff();
}

function brokenOff() {
  return new ApiError(
    "The answer broke off",
    "The connection ended before the answer was complete.",
  );
}

function headers(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function request(address, options) {
  let response;
  try {
    response = await fetch(address, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached", "Is it running, and is the network up?");
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw fromBody(body, response.status, retryAfter(response));
}

function fromBody(body, status, retryAfter) {
  const { message, code = null } = body.error ?? {};
  const text = message ?? `The server answered with status ${status}.`;
  return new ApiError(title(status, code), text, { status, code, retryAfter });
}

const TITLES_BY_CODE = {
  model_loading: "The model is still loading",
  engine_dead: "The engine has stopped",
  context_length_exceeded: "The conversation is too long",
};

const TITLES_BY_STATUS = {
  200: "The answer broke off", // an error within a stream
  400: "The server refused the request",
  401: "The server asks for an API key",
  403: "The server refused the request",
  404: "The server does not have this",
  413: "The message is too large",
  429: "The server is busy",
  503: "The server is not available",
};

function title(status, code) {
  return TITLES_BY_CODE[code] ?? TITLES_BY_STATUS[status] ?? "The server failed";
}

/** Retry-After in seconds; the header may also name a date. */
function retryAfter(response) {
  const value = response.headers.get("Retry-After");
  if (!value) return null;
  const seconds = /^\d+$/.test(value) ? Number(value) : (Date.parse(value) - Date.now()) / 1000;
  return Number.isFinite(seconds) ? Math.max(0, Math.ceil(seconds)) : null;
}
