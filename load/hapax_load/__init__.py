"""Load on a cluster, and the count after it: every record has a number, and every acknowledged record is looked up."""
