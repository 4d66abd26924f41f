"""Compressed bodies: zlib, lz4 frames and zstd frames, told apart by the type bits of sysFlag.

Compression is between producer and consumer; a broker stores and serves the bytes as they came. zlib is always there,
the others come with the extra `cometmq[compress]`.
"""

import zlib
from typing import Any, Final

from cometmq.protocol.errors import RecordError
from cometmq.protocol.sysflag import CompressionType

#: RocketMQ's level for zlib and zstd. lz4 has none here, as in Java.
DEFAULT_LEVEL: Final = 5

#: The largest body that may come out of a compressed one, in bytes: 16 times RocketMQ's default limit for a message
#: (4 MiB). Clients check that limit before they compress, so sound bodies stay far below, also on brokers with a raised
#: `maxMessageSize`; a few KiB of hostile zstd would otherwise fill the memory of a consumer.
MAX_DECOMPRESSED_SIZE: Final = 64 * 1024 * 1024


class CodecMissing(RecordError):
    """Raised when a body needs lz4 or zstd and the library is not installed."""

    remedy = "pip install 'cometmq[compress]'"


def _library(kind: CompressionType) -> Any:
    # Imported where they are used: most processes never meet these bodies. Python keeps the modules.
    try:
        if kind is CompressionType.LZ4:
            import lz4.frame

            return lz4.frame
        import zstandard

        return zstandard
    except ImportError:
        raise CodecMissing(f"{kind.name.lower()} bodies need a library: install cometmq[compress]") from None


def compress(body: bytes, kind: CompressionType, level: int = DEFAULT_LEVEL) -> bytes:
    """A body as Java, with the same compression, writes it."""
    if kind is CompressionType.ZLIB:
        return zlib.compress(body, level)
    library = _library(kind)
    if kind is CompressionType.LZ4:
        framed: bytes = library.compress(body)
        return framed
    packed: bytes = library.ZstdCompressor(level=level).compress(body)
    return packed


def decompress(body: bytes, kind: CompressionType, *, limit: int = MAX_DECOMPRESSED_SIZE) -> bytes:
    """The plain body. One that is broken, cut off, or longer than `limit` bytes is refused."""
    if kind is CompressionType.ZLIB:
        return _inflate(body, limit)
    library = _library(kind)
    try:
        if kind is CompressionType.LZ4:
            return _read_lz4(library, body, limit)
        return _read_zstd(library, body, limit)
    except (RuntimeError, EOFError, _library_error(library)) as error:
        raise RecordError(f"{kind.name.lower()} body of {len(body)} bytes: {error}") from None


def _library_error(library: Any) -> type[Exception]:
    """zstandard has an error of its own; lz4 raises RuntimeError."""
    error: type[Exception] = getattr(library, "ZstdError", RuntimeError)
    return error


def _too_long(kind: str, size: int, limit: int) -> RecordError:
    return RecordError(f"{kind} body of {size} bytes holds more than the {limit} bytes that are allowed")


def _inflate(body: bytes, limit: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(body, limit + 1)
    except zlib.error as error:
        raise RecordError(f"zlib body of {len(body)} bytes: {error}") from None
    if len(plain) > limit:
        raise _too_long("zlib", len(body), limit)
    if not stream.eof:
        raise RecordError(f"zlib body of {len(body)} bytes is cut off")
    return plain


def _read_lz4(library: Any, body: bytes, limit: int) -> bytes:
    stream = library.LZ4FrameDecompressor()
    plain: bytes = stream.decompress(body, limit + 1)
    if len(plain) > limit:
        raise _too_long("lz4", len(body), limit)
    if not stream.eof:
        raise RecordError(f"lz4 body of {len(body)} bytes is cut off")
    return plain


def _read_zstd(library: Any, body: bytes, limit: int) -> bytes:
    # With a content size in its header a frame is decompressed into a buffer of that size, whatever it claims; without
    # one (Java streams, so it writes none) into a buffer of max_output_size, of which only the used pages are touched.
    claimed: int = library.get_frame_parameters(body).content_size
    if claimed != library.CONTENTSIZE_UNKNOWN and claimed > limit:
        raise _too_long("zstd", len(body), limit)
    plain: bytes = library.ZstdDecompressor().decompress(body, max_output_size=limit)
    return plain
