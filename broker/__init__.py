"""The broker: the mqbroker daemon and the store that it stands on."""
