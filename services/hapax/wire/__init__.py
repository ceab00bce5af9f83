"""The Kafka protocol for servers and clients alike: messages, outgoing connections, calls between nodes."""
