"""Schemas of messages that kafka-python does not have, in the form of its own: one JSON file for each message.

`messages` makes a class of each file. The names, types and versions are those of the protocol as Kafka publishes it.
"""
