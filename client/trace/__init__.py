"""Message trace: who sent a message, who consumed it, when and how well, as messages of a topic of their own.

The records are RocketMQ's, so that its tools read them: `mqadmin queryMsgTraceById`, and the dashboard.
"""

from cometmq.client.trace.dispatcher import TraceDispatcher
from cometmq.client.trace.hooks import TraceConsumeHook, TraceSendHook

__all__ = ["TraceConsumeHook", "TraceDispatcher", "TraceSendHook"]
