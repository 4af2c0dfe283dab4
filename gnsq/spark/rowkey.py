r"""Row keys: the sink appends them to bodies if the option rowKey is true, and consumers split them off. Pure.

A body with a key is ``<body>\0<query id>/<batch id>/<partition>/<row>``. A task that Spark runs again gives each row
the same key, so a consumer can drop a message whose key it has seen. For that, the rows of a partition must be in the
same order each time, which a shuffle without a sort does not guarantee.
"""

from __future__ import annotations

from gnsq.texts import counted

__all__ = ["join", "split"]

_SEPARATOR = b"\0"


def join(body: bytes, query: str, batch: str, partition: int, row: int) -> bytes:
    """Append a key to a body."""
    return b"%b\0%b/%b/%d/%d" % (body, query.encode(), batch.encode(), partition, row)


def split(body: bytes) -> tuple[bytes, str]:
    r"""Split into (body, key). The body itself may contain ``\0``; a key never contains ``\0``.

    Raises:
        ValueError: If there is no key: the message was published without the option rowKey.
    """
    original, separator, key = body.rpartition(_SEPARATOR)
    if not separator or key.count(b"/") != 3:
        raise ValueError(
            f"body of {counted(len(body), 'byte')} has no row key: was it published with the option rowKey?"
        )
    return original, key.decode()
