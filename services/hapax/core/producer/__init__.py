"""The producer as its client sees it, and producer ids: blocks and leases."""
