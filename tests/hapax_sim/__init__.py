"""A deterministic simulator: the services' real code on virtual time, from one seed.

The services access the world through five ports only (`hapax.runtime.ports`). Here the ports are seeded models, and the
event loop's clock advances only when nothing is left to run. So one seed gives one history, bit for bit.
"""
