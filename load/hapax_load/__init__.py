"""Load on a cluster, and the count after it: every record has a number, and what was promised is looked for."""
