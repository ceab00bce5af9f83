"""Authorisation as Kafka has it: who may do what with which resource. Pure: no I/O, no clock."""
