"""Chaos on real processes: a cluster, clients of two kinds, one fault scenario at a time, and a checker that judges.

    make chaos MINUTES=10          as many scenarios as fit, the least recently run first
    make chaos ONLY='kill@*'       those whose names match

    nursery    forks every process from one that has imported everything; nothing outlives it
    network    a namespace for each node, on one bridge; packets dropped by nft
    proxy      sits between clients and nodes, and knows the protocol's frames
    world      the cluster: start, kill, freeze, damage
    clients    list-append in transactions, through the native client or librdkafka
    faults     what can go wrong, each with its end
    catalogue  all scenarios
    scenario   one run: fault, heal, read everything, judge
"""
