from gnsq.spark.uris import join_uri, redact_uri

REDACTED = {
    "/data/a:b@c?d": "/data/a:b@c?d",
    "relative/dir": "relative/dir",
    "file:///data/spool": "file:///data/spool",
    "s3://bucket/dir": "s3://bucket/dir",
    "s3://KEY:SECRET@bucket/dir?region=x": "s3://***@bucket/dir",
    # Not encoded.
    "s3://KEY:SE/CR@ET@bucket/dir": "s3://***@bucket/dir",
    "s3://AKIAKEY@bucket/dir": "s3://***@bucket/dir",
    # A container, which is no user.
    "abfs://dir@account/x": "abfs://dir@account/x",
    "abfs://dir@account/x?client_secret=S": "abfs://dir@account/x",
    "hdfs://host:8020/dir": "hdfs://host:8020/dir",
}


def test_uri_is_redacted():
    assert {uri: redact_uri(uri) for uri in REDACTED} == REDACTED


def test_path_is_joined_to_a_uri():
    assert join_uri("/data", "a/b") == "/data/a/b"
    assert join_uri("s3://bucket/dir/", "a/b") == "s3://bucket/dir/a/b"
    assert join_uri("s3://bucket/dir?region=x&y=/z", "a/b") == "s3://bucket/dir/a/b?region=x&y=/z"
