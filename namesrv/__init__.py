"""The nameserver: route tables, KV config, and the `mqnamesrv` daemon.

`server.NameServer` is what runs; it has no public names beside it. Mirrors RocketMQ's namesrv module.
"""
