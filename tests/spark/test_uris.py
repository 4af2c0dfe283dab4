import pytest

from gnsq.spark.uris import join_uri, redact_uri


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        pytest.param("/data/a:b@c?d", "/data/a:b@c?d", id="path"),
        pytest.param("relative/dir", "relative/dir", id="relative"),
        pytest.param("file:///data/spool", "file:///data/spool", id="file"),
        pytest.param("s3://bucket/dir", "s3://bucket/dir", id="bucket"),
        pytest.param("s3://KEY:SECRET@bucket/dir?region=x", "s3://***@bucket/dir", id="user and password"),
        pytest.param("s3://KEY:SE/CR@ET@bucket/dir", "s3://***@bucket/dir", id="not encoded"),
        pytest.param("s3://AKIAKEY@bucket/dir", "s3://***@bucket/dir", id="user alone"),
        pytest.param("abfs://dir@account/x", "abfs://dir@account/x", id="container"),
        pytest.param("abfs://dir@account/x?client_secret=S", "abfs://dir@account/x", id="query"),
        pytest.param("hdfs://host:8020/dir", "hdfs://host:8020/dir", id="port"),
    ],
)
def test_uri_is_redacted(location, shown):
    assert redact_uri(location) == shown


@pytest.mark.parametrize(
    ("location", "found"),
    [
        pytest.param("/data", "/data/a/b", id="path"),
        pytest.param("s3://bucket/dir/", "s3://bucket/dir/a/b", id="URI"),
        pytest.param("s3://bucket/dir?region=x&y=/z", "s3://bucket/dir/a/b?region=x&y=/z", id="query"),
    ],
)
def test_path_is_joined_to_a_uri(location, found):
    assert join_uri(location, "a/b") == found
