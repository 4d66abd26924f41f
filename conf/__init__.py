"""Ready configurations in RocketMQ's .properties form. `mqbroker --print-conf-dir` says where this is."""
