"""Settings that were changed from remote: where they are kept, and how a restart gets them back.

A broker that was started with a configuration file has them in that file, which is written anew as a whole, as RocketMQ
does. Without one they are kept by themselves in `config/broker.properties` of the store, so that all else (ports,
addresses, what the command line says) is still decided at each start.
"""

import logging
from collections.abc import Mapping

from cometmq.broker.config import BrokerConfig
from cometmq.files import read_or_backup, write_atomically
from cometmq.protocol import properties_text

log = logging.getLogger(__name__)


def own_path(config: BrokerConfig) -> str:
    """Where changes are kept when no configuration file was given."""
    return f"{config.store.root}/config/broker.properties"


def save(config: BrokerConfig, changed: Mapping[str, str]) -> None:
    """Returns when the new settings, of which `changed` are the keys of this change, are on the disk. In any thread."""
    path = config.broker_config_path
    if path == own_path(config):
        kept = read_or_backup(path, properties_text.loads) or {}
        shown = config.to_properties()
        kept.update({key: shown[key] for key in changed if key in shown})
        write_atomically(path, properties_text.dumps(dict(sorted(kept.items()))).encode())
    elif path:
        write_atomically(path, config.to_text().encode())


def restore(config: BrokerConfig) -> BrokerConfig:
    """The settings of a start, with what was changed from remote before. Raises what reading the file raises."""
    path = own_path(config)
    if config.broker_config_path != path:
        return config
    kept = read_or_backup(path, properties_text.loads) or {}
    # The file is no way around the rules: what may not be changed from remote does not come from there.
    usable = {key: text for key, text in kept.items() if config.is_dynamic(key) is not False}
    restored, problems = config.updated(usable)
    for problem in problems:
        log.warning("%s: %s; it is left out", path, problem)
    if usable:
        log.info("settings that were changed at run time: %s (%s)", ", ".join(sorted(usable)), path)
    return restored
