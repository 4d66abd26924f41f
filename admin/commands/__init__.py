"""The commands of `mqadmin`, by subject. Each is options, one or two calls of the admin client, and RocketMQ's text."""
