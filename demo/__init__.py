"""The demo pair: a small Qwen3 chat model of the standard library, and its DFlash drafter."""
