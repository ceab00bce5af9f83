"""Exhaustive exploration: every interleaving of the real machines in a small scope. See docs/exploration.md."""
