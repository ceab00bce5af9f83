"""Client quotas as Kafka has them: whom they name, which holds for a client, and how much it has used. Pure: no I/O, no
clock."""
