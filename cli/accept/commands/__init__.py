"""What each command does. `accept.__main__` declares them; these modules load when one is used."""
