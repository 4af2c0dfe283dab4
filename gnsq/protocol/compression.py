"""Codecs that compress and decompress the stream of a connection. Pure. Client and server use the same classes.

A frame of nsqd may begin and end anywhere inside deflate's blocks or snappy's chunks. Source: nsqd client_v2.go
UpgradeDeflate, UpgradeSnappy; RFC 1951; snappy's framing format.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final, Protocol

from gnsq.errors import NSQProtocolError
from gnsq.texts import counted

if TYPE_CHECKING:
    import snappy

__all__ = ["Codec", "DEFAULT_DEFLATE_LEVEL", "Deflate", "Snappy", "require_snappy"]

DEFAULT_DEFLATE_LEVEL: Final = 6

# zlib's wbits for a stream without header and checksum, such as nsqd's stream. Source: Go's compress/flate.
_RAW: Final = -zlib.MAX_WBITS

_STREAM_IDENTIFIER: Final = b"\xff\x06\x00\x00sNaPpY"
_CHUNK_HEADER: Final = 4
_CHECKSUM: Final = 4
# Limit of a chunk's decompressed content in bytes.
_MAX_CONTENT: Final = 65536
# Limit of a chunk's body in bytes: checksum and compressed content. Compression may make the content longer.
_MAX_CHUNK: Final = _CHECKSUM + 32 + _MAX_CONTENT + _MAX_CONTENT // 6
_COMPRESSED, _UNCOMPRESSED = 0x00, 0x01
_FIRST_SKIPPABLE, _LAST_SKIPPABLE = 0x80, 0xFE


class Codec(Protocol):
    """The compression of one connection, in both directions."""

    name: str

    def compress(self, data: bytes) -> bytes:
        """Compress bytes, and return all that the peer needs to decompress them now."""

    def decompress(self, data: bytes, limit: int) -> bytes:
        """Decompress received bytes. Return at most limit bytes, or one chunk of snappy if that is longer.

        The caller must repeat the call with b"" until it returns b"", and only then pass the next received bytes. So
        memory is bounded even if few bytes decompress to many.

        Raises:
            NSQProtocolError: If the bytes are not a valid stream of this codec, or follow the end of the stream.
        """


class Deflate:
    """Raw deflate. All bytes that are compressed in one direction of a connection are one deflate stream.

    Args:
        level: Compression level of the bytes that are sent: 1 (fastest) to 9 (smallest).
    """

    name = "deflate"

    def __init__(self, level: int = DEFAULT_DEFLATE_LEVEL) -> None:
        self._compressor = zlib.compressobj(level, zlib.DEFLATED, _RAW)
        self._decompressor = zlib.decompressobj(_RAW)
        self._tail = b""

    def compress(self, data: bytes) -> bytes:
        return self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH)

    def decompress(self, data: bytes, limit: int) -> bytes:
        decompressor = self._decompressor
        surplus = data if decompressor.eof else b""
        try:
            result = b"" if surplus else decompressor.decompress(self._tail + data, limit)
        except zlib.error as error:
            raise NSQProtocolError(f"the received bytes are no deflate stream: {error}") from error
        surplus = surplus or decompressor.unused_data
        if surplus:
            raise NSQProtocolError(f"{counted(len(surplus), 'byte')} after the end of the deflate stream")
        self._tail = decompressor.unconsumed_tail
        return result


class Snappy:
    """Snappy's framing format: an identifier, then chunks, each with a checksum and up to 64 KiB of content.

    Raises:
        ImportError: If python-snappy can't be imported.
    """

    name = "snappy"

    def __init__(self) -> None:
        snappy = require_snappy()
        self._compressor = snappy.StreamCompressor()
        self._decompressor = snappy.StreamDecompressor()
        self._buffer = bytearray()
        self._identified = False
        # Number of bytes to skip when they arrive: the rest of a skippable chunk.
        self._skip = 0

    def compress(self, data: bytes) -> bytes:
        compressed: bytes = self._compressor.compress(data)
        return compressed

    def decompress(self, data: bytes, limit: int) -> bytes:
        self._buffer += data
        chunks = self._whole_chunks(limit)
        if not chunks:
            return b""
        try:
            result: bytes = self._decompressor.decompress(chunks)
        except Exception as error:  # versions of python-snappy raise different errors, even OSError
            raise NSQProtocolError(f"the received bytes are no snappy stream: {error}") from error
        return result

    def _whole_chunks(self, limit: int) -> bytes:
        """Remove and return complete chunks, with up to limit bytes of content together, or one chunk with more.

        python-snappy gets no other bytes: it waits for all of an invalid or skippable chunk, which may have 16 MiB,
        and decompresses all chunks at once.
        """
        buffer = self._buffer
        taken = bytearray()
        total = 0
        position = min(self._skip, len(buffer))
        self._skip -= position
        while len(buffer) - position >= _CHUNK_HEADER:
            kind = buffer[position]
            stop = position + _CHUNK_HEADER + int.from_bytes(buffer[position + 1 : position + 4], "little")
            if not self._identified and not _STREAM_IDENTIFIER.startswith(buffer[position : position + 10]):
                raise NSQProtocolError(
                    f"the received bytes are no snappy stream: it begins {bytes(buffer[position:][:10])!r}"
                )
            if _FIRST_SKIPPABLE <= kind <= _LAST_SKIPPABLE:
                position = min(stop, len(buffer))
                self._skip = stop - position
                continue
            if stop - position > _CHUNK_HEADER + _MAX_CHUNK:
                size = stop - position - _CHUNK_HEADER
                raise NSQProtocolError(f"snappy chunk of {size} bytes, the longest that is legal has {_MAX_CHUNK}")
            if stop > len(buffer):
                break
            content = position + _CHUNK_HEADER + _CHECKSUM
            size = 0
            if kind == _UNCOMPRESSED:
                size = stop - content
            elif kind == _COMPRESSED and content + 1 < stop:
                # The size usually takes one or two bytes. To decode it without a call halves the time of small chunks.
                size, more = buffer[content], buffer[content + 1]
                if size >= 0x80:
                    size = size - 0x80 + (more << 7) if more < 0x80 else _announced_size(buffer[content : content + 5])
                if size > _MAX_CONTENT:
                    # Refuse the chunk now: python-snappy may allocate this size before it finds the chunk invalid.
                    raise NSQProtocolError(
                        "the received bytes are no snappy stream: "
                        f"a chunk announces {size} bytes, the most is {_MAX_CONTENT}"
                    )
            if total and total + size > limit:
                break
            total += size
            self._identified = True
            taken += buffer[position:stop]
            position = stop
        del buffer[:position]
        return bytes(taken)


def _announced_size(head: bytearray) -> int:
    """Decode the content's size in a compressed chunk: seven bits per byte, lowest first, the last byte below 128."""
    size = 0
    for index, byte in enumerate(head):
        size |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            break
    return size


def require_snappy() -> snappy:
    """Import python-snappy. The import is slow, so only connections that use snappy call this function.

    Raises:
        ImportError: If the import fails; the text says what to do.
    """
    try:
        import snappy
    except ImportError as error:
        raise ImportError(
            f"snappy was asked for, but python-snappy can't be imported ({error}): install it "
            "(pip install python-snappy), or ask for deflate or no compression"
        ) from error
    return snappy
