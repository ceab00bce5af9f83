"""Chaos on real processes: a cluster, two kinds of clients, one fault scenario at a time, and a history checker.

    make chaos MINUTES=10          as many scenarios as fit, the least recently run first
    make chaos ONLY='kill@*'       those whose names match

    nursery    forks every process from one that has imported everything, and kills them when the harness ends
    network    a namespace for each node, on one bridge; packets dropped by nft
    proxy      between clients and nodes; reads the protocol's frames
    world      the cluster: start, kill, freeze, damage
    clients    list-append in transactions, through the native client or librdkafka
    faults     the faults: each begins, lasts and ends
    catalogue  all scenarios
    scenario   one run: fault, repair, read everything, check
"""
