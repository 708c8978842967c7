"""The demo pair: a small Qwen3 chat model of the Python standard library, and its DFlash drafter."""
