"""`hapax verify`: checks the files of a cluster, and reports where they are damaged."""

from hapax.cli.verify.command import verify

__all__ = ["verify"]
