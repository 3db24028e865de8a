"""A verdict as plain text and as Markdown; nodes print both."""
