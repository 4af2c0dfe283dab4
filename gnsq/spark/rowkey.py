r"""Row keys: what the sink appends to a body when the option rowKey is true, and how a consumer takes it off. PURE.

A keyed body is ``<body>\0<query id>/<batch id>/<partition>/<row>``. A task that Spark runs again gives each row the
key it had before, so a consumer that has seen a key drops the message. (Provided that the rows of a partition come in
the same order again: a shuffle without a sort does not promise that.)
"""

from __future__ import annotations

from gnsq.texts import counted

__all__ = ["join", "split"]

_SEPARATOR = b"\0"


def join(body: bytes, query: str, batch: str, partition: int, row: int) -> bytes:
    """Append a key to a body."""
    return b"%b\0%b/%b/%d/%d" % (body, query.encode(), batch.encode(), partition, row)


def split(body: bytes) -> tuple[bytes, str]:
    """Take the key off: (body, key). The body itself may hold zero bytes, a key never does.

    Raises:
        ValueError: If there is no key: the message was published without the option rowKey.
    """
    original, separator, key = body.rpartition(_SEPARATOR)
    if not separator or key.count(b"/") != 3:
        raise ValueError(
            f"body of {counted(len(body), 'byte')} has no row key: was it published with the option rowKey?"
        )
    return original, key.decode()
