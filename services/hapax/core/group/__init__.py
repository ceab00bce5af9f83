"""One shard of the groups' offsets."""
