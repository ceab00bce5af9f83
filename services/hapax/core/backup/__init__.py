"""Backups: which transactions one contains, and what its manifest says. Pure."""
