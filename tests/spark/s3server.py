"""An S3 endpoint on loopback: moto's server in a process of its own."""

import contextlib
import http.client
import re
import subprocess
import sys
import threading
import uuid

from tests.spark.helpers import wait_for


class S3Endpoint:
    """Attributes: port."""

    def location(self, path, credentials=""):
        """The URI of a directory; the first part of path is its bucket."""
        query = f"endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1"
        return f"s3://{credentials}{path}?{query}"


class S3Server(S3Endpoint):
    """Attributes: port; requests: method and path of each so far."""

    def __init__(self, process):
        self.requests = []
        self._process = process
        line = next(line for line in process.stdout if "Running on" in line)
        self.port = int(line.rsplit(":", 1)[1])
        threading.Thread(target=self._note, daemon=True).start()

    def noted(self):
        """The number of requests so far. The server prints a request some time after it has answered it."""
        path = f"/{uuid.uuid4()}"
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)) as connection:
            connection.request("GET", path)
            connection.getresponse().read()
        wait_for(lambda: f"GET {path}" in self.requests)
        return len(self.requests)

    def _note(self):
        for line in self._process.stdout:
            match = re.search("(GET|PUT|POST|DELETE|HEAD) ([^? ]*)", line)
            if match is not None:
                self.requests.append(" ".join(match.groups()))


# moto checks the condition of a PUT (If-None-Match) and stores the object in two steps. If it handled another PUT
# between them, both would succeed, which no real store allows. So it handles one request at a time.
SERVER = """
import threading
import moto.server

lock, run_simple = threading.Lock(), moto.server.run_simple

def run_one_at_a_time(host, port, application, **options):
    def locked(environ, start_response):
        with lock:
            return list(application(environ, start_response))
    run_simple(host, port, locked, **options)

moto.server.run_simple = run_one_at_a_time
moto.server.main(["-H", "127.0.0.1", "-p", "0"])
"""


@contextlib.contextmanager
def s3_server():
    """Run the server until the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield S3Server(process)
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()
