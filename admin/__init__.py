"""`mqadmin`: the admin client of a cluster as a command line, with RocketMQ's commands, options and words.

Thin on purpose: what is asked of servers is in `cometmq.client.admin`, here are options in and text out. Plug-ins are
commands made with `cometmq.admin.command.command`, named by the entry point group `cometmq.admin_commands`.
"""
