"""The Kubernetes operator: keeps topics as `Topic` resources describe them, shows transactional producers, and hosts
the cluster's controller. Three layers, arrows one way: what is wanted and what is (`resources`, `conditions`), the pure
plan (`plan_topic`, `plan_producer`), and what touches the world (`observe`, `apply`, `api`, `reconciler`, `main`)."""
