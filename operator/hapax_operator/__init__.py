"""The Kubernetes operator: keeps topics as `Topic` resources describe them, shows transactional producers, and hosts
the cluster's controller. It has three layers, each of which uses only those named before it: types (`resources`,
`conditions`), pure plans (`plan_topic`, `plan_producer`), and I/O (`observe`, `apply`, `api`, `reconciler`, `main`)."""
