"""Which node holds and leads what."""
