"""One module for each API key."""
