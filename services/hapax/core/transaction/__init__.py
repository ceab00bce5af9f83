"""One shard of the transaction coordinator."""
