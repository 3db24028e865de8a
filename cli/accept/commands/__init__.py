"""What each command does, one module per command; `accept.app` declares them."""
