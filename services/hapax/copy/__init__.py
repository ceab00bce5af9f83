"""`hapax copy`: copies topics between clusters, each record once."""
