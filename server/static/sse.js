// Server-sent events out of a response's body.

/** The data of each event, in order. Comments (the server's pings) are passed over. */
export async function* eventData(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  let ended = false;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      ended = done;
      if (ended) return; // an event without its empty line is incomplete and dropped
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines.map((line) => line.replace(/\r$/, ""))) {
        if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
        else if (line === "" && data.length) {
          yield data.join("\n");
          data = [];
        }
      }
    }
  } finally {
    // Whoever stops listening also ends the request.
    if (!ended) reader.cancel().catch(() => {});
  }
}
