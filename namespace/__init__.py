"""CometMQ: a message queue that speaks Apache RocketMQ's remoting protocol.

This package holds the public names. They are loaded when first used, so that a nameserver, a broker or a
Spark worker never imports the client SDK.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
