"""Consuming: who gets which queues, how messages come, and how they are settled."""
