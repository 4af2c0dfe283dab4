"""Files on an object store: S3, and untested, Google's and Azure's. Addresses are those of pyarrow.fs.

Requests go by obstore, which can do what pyarrow can't: list names after a given one, delete 1,000 files in one
request, and put a file on a condition. A request that the store does not answer, or answers by an error of its own (503
and the like), is sent again for RETRY_TIME. All users of a store have these limits: obstore, pyarrow and delta-rs.

So a PUT may reach the store twice, also one with a condition, which then fails although the first one has succeeded.
Who puts on a condition must look whose file it is.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import obstore
import pyarrow as pa
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import AzureStore, GCSStore, S3Store
from pyarrow import fs

from gnsq.spark.uris import redact_uri

__all__ = ["RETRY_TIME", "ObjectStore", "delta_retries", "describe_error", "open_object_store", "s3_options"]

# Seconds for which a request is sent again, and for which it may last. A store that hangs must raise an error, which is
# logged, within the sum: a minute.
RETRY_TIME, REQUEST_TIMEOUT = 30, 30
CONNECT_TIMEOUT = 5
# Seconds. The pauses between the tries double, with some chance in them, from the first one up to the longest one.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5
# Not a limit of its own: RETRY_TIME ends the tries. Without a number the libraries would give up after ten.
_MAX_RETRIES = 1000
# Seconds of the first pause of pyarrow's S3, which takes a number of tries, and doubles each pause.
_PYARROW_PAUSE = 0.025
# Seconds after which credentials are looked up again. A key in a profile may be changed by hand.
CREDENTIALS_LIFETIME = 900
# Larger files are sent in parts of this many bytes, so that a slow connection does not exceed REQUEST_TIMEOUT.
PART_SIZE = 16 * 1024 * 1024
# Characters of an error.
MAX_LINE = 600
# The process that has sent requests. A forked child lacks the threads that send them.
_process: int | None = None


def open_object_store(location: str, what: str) -> ObjectStore:
    """Make the store of a URI, as storage.open_store() does."""
    try:
        filesystem, path = fs.FileSystem.from_uri(location)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        shown = redact_uri(location)
        # Raise without the cause (from None): its text may show the credentials in the location.
        raise ValueError(f"{what} {shown!r} can't be opened: {str(error).replace(location, shown)}") from None
    return ObjectStore(location, filesystem, path)


class ObjectStore:
    """A directory of an object store. Methods as LocalStore's. All may raise OSError.

    Args:
        location: The URI.
        filesystem: Made by pyarrow from the URI.
        root: Path of the directory, which begins with the bucket.

    Attributes:
        client: The client of obstore, for requests that only object stores know.
    """

    lists_in_order = True

    def __init__(
        self,
        location: str,
        filesystem: Any,  # Any: pyarrow has no types
        root: str,
    ) -> None:
        self._fs = _patient(filesystem)
        self._root = root.strip("/")
        bucket, _, prefix = self._root.partition("/")
        self.client = _client(location, filesystem, bucket, prefix or None)

    def put(self, path: str, data: Any) -> None:  # Any: bytes or pyarrow.Buffer
        with _errors():
            obstore.put(self.client, path, memoryview(data).cast("B"), chunk_size=PART_SIZE)

    def try_create(self, path: str, data: bytes) -> bool:
        """Write a file, unless there is one already. Returns False if there is."""
        try:
            obstore.put(self.client, path, data, mode="create")
        except AlreadyExistsError:
            return False
        except BaseError as error:
            raise OSError(describe_error(error)) from None
        return True

    def read(self, path: str) -> Any:
        with _errors():
            return pa.py_buffer(obstore.get(self.client, path).bytes())

    def open(self, path: str) -> Any:
        # By pyarrow: obstore's files would take Python's lock for each piece that Parquet reads.
        return self._fs.open_input_file(f"{self._root}/{path}")

    def size(self, path: str) -> int | None:
        try:
            with _errors():
                return obstore.head(self.client, path)["size"]
        except FileNotFoundError:
            return None

    def make_directory(self, path: str) -> None:
        """Do nothing: an object store has no directories."""

    def list(self) -> list[str]:
        return [*self._listed(None)]

    def directories(self) -> set[str]:
        with _errors():
            return set(obstore.list_with_delimiter(self.client)["common_prefixes"])

    def names(self, directory: str, after: str = "") -> set[str]:
        start = len(directory) + 1
        offset = f"{directory}/{after}" if after else None
        return {path[start:] for path in self._listed(directory, offset)}

    def first_name(self, directory: str) -> str | None:
        return next((path.rpartition("/")[2] for path in self._listed(directory)), None)

    def _listed(self, prefix: str | None, offset: str | None = None) -> Iterator[str]:
        with _errors():
            for page in obstore.list(self.client, prefix, offset=offset, chunk_size=1000):
                for each in page:
                    # pyarrow makes an object for an empty directory, and obstore shows it by the directory's name.
                    if each["path"] != (prefix or ""):
                        yield each["path"]

    def remove(self, *paths: str) -> None:
        if not paths:
            return
        try:
            with _errors():
                obstore.delete(self.client, list(paths))
        except FileNotFoundError:
            # Google and Azure raise this for a file that does not exist; S3 does not.
            for path in paths:
                with contextlib.suppress(FileNotFoundError), _errors():
                    obstore.delete(self.client, path)

    def remove_directory(self, path: str) -> None:
        """Delete the object that pyarrow makes for a directory after it has deleted the last file in it."""
        whole = f"{self._root}/{path}" if path else self._root
        if not self._fs.get_file_info(fs.FileSelector(whole, allow_not_found=True)):
            with contextlib.suppress(FileNotFoundError):
                self._fs.delete_dir(whole)

    def rename(self, path: str, target: str) -> bool:
        try:
            with _errors():
                obstore.rename(self.client, path, target)
        except FileNotFoundError:
            return False
        return True


def s3_options(filesystem: Any) -> dict[str, str]:  # Any: pyarrow has no types
    """Collect the address and the keys that pyarrow has found for an s3: URI, by the names of Rust's object_store."""
    settings = filesystem.__reduce__()[1][0]
    endpoint = settings["endpoint_override"]
    if endpoint and "://" not in endpoint:
        endpoint = f"{settings['scheme']}://{endpoint}"
    options = {
        # As pyarrow has found it, also in a profile.
        "region": filesystem.region,
        "endpoint": endpoint,
        "access_key_id": settings["access_key"],
        "secret_access_key": settings["secret_key"],
        "session_token": settings["session_token"],
        "conditional_put": "etag",
    }
    return {name: value for name, value in options.items() if value}


def delta_retries() -> dict[str, str]:
    """Build the options with which delta-rs sends requests again as this module does."""
    return {
        "max_retries": str(_MAX_RETRIES),
        "retry_timeout": f"{RETRY_TIME}s",
        "backoff_config.init_backoff": f"{round(FIRST_PAUSE * 1000)}ms",
        "backoff_config.max_backoff": f"{LONGEST_PAUSE}s",
        "timeout": f"{REQUEST_TIMEOUT}s",
        "connect_timeout": f"{CONNECT_TIMEOUT}s",
    }


def _patient(filesystem: Any) -> Any:  # Any: pyarrow has no types
    """Let pyarrow's S3 send requests again for about RETRY_TIME. Its own limit is 6 s, and a URI can't change it."""
    if filesystem.type_name != "s3":
        return filesystem
    retries = int(math.log2(RETRY_TIME / _PYARROW_PAUSE))
    settings = filesystem.__reduce__()[1][0]
    return fs.S3FileSystem(**settings, retry_strategy=fs.AwsDefaultS3RetryStrategy(max_attempts=retries))


def _client(
    location: str,
    filesystem: Any,  # Any: pyarrow has no types
    bucket: str,
    prefix: str | None,
) -> Any:  # Any: one of three classes
    uri = urlsplit(location)
    settings: Mapping[str, Any] = filesystem.__reduce__()[1][0]
    limits: dict[str, Any] = {
        "client_options": {
            "timeout": dt.timedelta(seconds=REQUEST_TIMEOUT),
            "connect_timeout": dt.timedelta(seconds=CONNECT_TIMEOUT),
        },
        "retry_config": {
            "max_retries": _MAX_RETRIES,
            "retry_timeout": dt.timedelta(seconds=RETRY_TIME),
            "backoff": {
                "init_backoff": dt.timedelta(seconds=FIRST_PAUSE),
                "max_backoff": dt.timedelta(seconds=LONGEST_PAUSE),
            },
        },
    }
    options: Any = {}  # Any: the keys differ
    if filesystem.type_name == "s3":
        options = s3_options(filesystem)
        limits["client_options"]["allow_http"] = options.get("endpoint", "").startswith("http:")
        query = parse_qs(uri.query)
        if "tls_ca_file_path" in query:
            limits["client_options"]["root_certificate"] = Path(query["tls_ca_file_path"][0]).read_bytes()
        if query.get("tls_verify_certificates") == ["false"]:
            limits["client_options"]["allow_invalid_certificates"] = True
        if "access_key_id" not in options and "AWS_ACCESS_KEY_ID" not in os.environ:
            limits["credential_provider"] = _aws_credentials
        return S3Store(bucket, prefix=prefix, **limits, config=options)
    if filesystem.type_name == "gcs":
        if settings["anonymous"]:
            options["skip_signature"] = True
        if settings["endpoint_override"]:
            options["base_url"] = f"{settings['scheme']}://{settings['endpoint_override']}"
            limits["client_options"]["allow_http"] = settings["scheme"] == "http"
        return GCSStore(bucket, prefix=prefix, **limits, config=options)
    options["account_name"] = settings["account_name"]
    if uri.password:
        options["account_key"] = unquote(uri.password)
    return AzureStore(bucket, prefix=prefix, **limits, config=options)


def _aws_credentials() -> dict[str, Any]:
    """Find credentials as AWS's own programs do: in a profile, from a role, from the machine."""
    import botocore.session  # takes 0.1 s, and most users have keys in the environment

    found = botocore.session.get_session().get_credentials()
    if found is None:
        raise OSError("no credentials of AWS found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile")
    keys = found.get_frozen_credentials()
    return {
        "access_key_id": keys.access_key,
        "secret_access_key": keys.secret_key,
        "token": keys.token,
        "expires_at": dt.datetime.now(dt.UTC) + dt.timedelta(seconds=CREDENTIALS_LIFETIME),
    }


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Translate errors of obstore to OSError, in one line."""
    global _process
    if _process not in (None, os.getpid()):
        raise OSError(
            "an object store can't be used in a process forked from one that has used it: start a new process"
        )
    _process = os.getpid()
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(describe_error(error)) from None
    except BaseError as error:
        raise OSError(describe_error(error)) from None


def describe_error(error: Exception) -> str:
    """Return an error of obstore as one line of limited length, without XML."""
    text, is_xml, xml = str(error).partition("\n\nDebug source")[0].partition("<?xml")
    if is_xml:
        code, message = (xml.partition(f"<{tag}>")[2].partition("<")[0] for tag in ("Code", "Message"))
        text += f"{code}: {message}" if code else is_xml + xml
    line = " ".join(text.split())
    # The error of a deletion names all its files.
    return line if len(line) <= MAX_LINE else f"{line[: MAX_LINE // 2]} ... {line[-MAX_LINE // 2 :]}"
