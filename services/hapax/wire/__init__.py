"""The Kafka protocol, for servers and clients: messages, outgoing connections, calls between nodes."""
