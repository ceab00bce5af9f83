"""One partition: its log as a machine, and what its leader knows of the replicas."""
