"""The store of a broker: RocketMQ's files on disk. Knows nothing of sockets or clients."""
