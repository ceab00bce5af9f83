"""`hapax verify`: whether the files of a cluster are what they should be, and where they are not."""

from hapax.cli.verify.command import verify

__all__ = ["verify"]
