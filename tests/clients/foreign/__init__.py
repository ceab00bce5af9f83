"""Other people's Kafka clients behind one face, so that each runs through the same tests."""

from clients.foreign.face import Abortable, Fatal, ForeignClient, Reader, TransactionalProducer

__all__ = ["Abortable", "Fatal", "ForeignClient", "Reader", "TransactionalProducer"]
