"""A deterministic simulator: the services' real code on virtual time, from one seed.

The services reach the world through five ports only (`hapax.runtime.ports`). Here the ports are seeded models, and
the event loop's clock moves only when nothing is left to run. One seed therefore gives one history, bit for bit.
"""
