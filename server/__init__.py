"""The API process: HTTP, text and templates. The engine behind it speaks token ids only."""
