"""A cluster on one machine: etcd, PID allocator, controller, brokers and coordinators, each a process of its own.

`runner` starts them and is their parent; `cluster` is how everybody else (the commands, tests, the demo) talks to a
runner; `folder` is what lies on disk between the two.
"""
