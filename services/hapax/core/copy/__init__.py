"""Copies between clusters: what may be copied together, and what a position in the source means later."""
