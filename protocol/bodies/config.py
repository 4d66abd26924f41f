"""Configuration as `.properties` text: requests and answers 25, 26, 318 and 319."""

from typing import Self

from cometmq.protocol import properties_text
from cometmq.protocol.bodies.base import Body, always_new


class ConfigText(Body, frozen=True, kw_only=True):
    """Keys and values of a configuration. No JSON: lines `key=value`."""

    properties: dict[str, str] = always_new(dict)

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> Self:
        return cls(properties=properties_text.loads(data))

    def encode(self, *, standard: bool = False) -> bytes:
        return properties_text.dumps(self.properties).encode()
