import pytest

from gnsq.spark import rowkey


@pytest.mark.parametrize("body", [b"x", b'{"a": 1}', b"with \0 in it", b"/////", "gr\u00fc\u00dfe".encode()])
def test_key_can_be_taken_off(body):
    assert rowkey.split(rowkey.join(body, "q-1", "7", 3, 42)) == (body, "q-1/7/3/42")


@pytest.mark.parametrize("body", [b"", b"plain", b"zero \0 but no key"])
def test_body_without_a_key_is_refused(body):
    with pytest.raises(ValueError, match="has no row key: was it published with the option rowKey"):
        rowkey.split(body)
