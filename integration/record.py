"""Record the responses of a server to recorded sessions, and show the differences.

    python -m integration.record SESSIONS --address HOST:PORT --http-address HOST:PORT > NEW
    python -m integration.record --compare OLD NEW

tests/vectors/transcripts/README.md describes the file of sessions. Its header has the flags for the server. An
unchanged response is written as it is in SESSIONS, so the files differ only if the server differs. Ids, times, versions
and ports are tokens in both files.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import difflib
import itertools
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests
from gevent.pool import Pool

from fakensqd import FakeAuthServer
from gnsq.addresses import parse_address
from tests.fakensqd.recorded_auth import RecordedAnswers
from tests.fakensqd.templates import Difference, Names, compare_json, pieces, sorted_lists
from tests.fakensqd.transcripts import (
    MAX_CONCURRENT_SESSIONS,
    Answer,
    Player,
    Received,
    Step,
    Transcript,
    load_file,
    phase,
)

# Parts of a message frame.
MESSAGE = 2
TIMESTAMP, ATTEMPTS, ID = slice(0, 8), slice(8, 10), slice(10, 26)
# Keys of a session or step that are not responses.
REMARKS = ("text", "observed", "body_text", "title")


class Recorder(Player):
    """Plays a session, and replaces the expected responses by the received ones."""

    def record(self, session: Step) -> Step:
        """Play a session, and return it with the responses of this server. An error that ends it is added to it."""
        recorded = copy.deepcopy(session)
        self._left = iter(recorded["steps"])
        try:
            self.play(session)
        except (Difference, KeyError) as error:
            # An id that was never received can't be sent.
            recorded["stopped"] = f"{type(error).__name__}: {error}"
        return recorded

    def _step(self, step: Step) -> None:
        self._recorded = next(self._left)
        super()._step(step)

    def differs(self, step: Step, received: Received | Answer, difference: Difference) -> None:
        """Record the received response, and continue."""
        if isinstance(received, Answer):
            self._recorded["answer"] = self._answer(step["answer"], received)
            return
        wanted = itertools.chain(step["frames"], itertools.repeat({}))
        frames = [self._frame(*pair) for pair in zip(wanted, received.frames, strict=False)]
        closed = step.get("closed", False)
        if (frames, received.ended) == (step["frames"], closed):
            # The responses are equal, and their times or numbers differ.
            self._recorded["difference"] = re.sub(r"\d+\.\d+", "{TIME}", str(difference))
        self._recorded["frames"] = frames
        if received.ended != closed:
            self._recorded["closed"] = received.ended

    def _frame(self, wanted: Step, frame: tuple[int | None, bytes]) -> Step:
        kind, data = frame
        with contextlib.suppress(Difference, AssertionError, KeyError):
            self._names.compare(wanted["hex"], data)
            return wanted
        found: Step = {} if kind is None else {"type": kind}
        if kind == MESSAGE:
            # Later steps may use the token.
            tokens = [f"{token}:{text}" for token, text in pieces(wanted.get("hex", "")) if token in ("TS", "ID")]
            for token, value in zip(tokens, (data[TIMESTAMP], data[ID]), strict=False):
                self._names.values.setdefault(token, value)
            found["attempts"] = int.from_bytes(data[ATTEMPTS], "big")
        return {**found, "hex": self._names.template(data)}

    def _answer(self, wanted: Step, got: Answer) -> Step:
        answer = {"status": got.status, "headers": {name: got.headers[name] for name in wanted["headers"]}}
        try:
            found = json.loads(got.body)
        except ValueError:
            return {**answer, "text": got.body.decode(errors="replace").replace(self._names.run.decode(), "{RUN}")}
        ordered = sorted_lists(found) if wanted.get("unordered") else found
        return {**answer, "json": merged(wanted.get("json"), ordered, self._names)}


def merged(wanted: Any, got: Any, names: Names) -> Any:
    """Replace the parts of a response that are as expected by the expected parts, which have tokens."""
    try:
        compare_json(wanted, got, names)
    except (Difference, KeyError):
        pass
    else:
        return wanted
    if isinstance(got, dict):
        old = wanted if isinstance(wanted, dict) else {}
        expanded = {names.expand(key, str.encode).decode(): key for key in old}
        keys = {key: expanded.get(key, key) for key in got}
        return {keys[key]: merged(old.get(keys[key]), value, names) for key, value in got.items()}
    if isinstance(got, list) and isinstance(wanted, list) and len(got) == len(wanted):
        return [merged(*pair, names) for pair in zip(wanted, got, strict=True)]
    return json.loads(json.dumps(got).replace(names.run.decode(), "{RUN}"))


# --- files


def record(transcript: Transcript, tcp_address: str, http_address: str) -> Transcript:
    """Play all sessions with a server, one at a time if necessary, and return them with its responses."""
    header = transcript.header
    kind = header["server"].split()[0]
    version = requests.get(f"http://{http_address}/info", timeout=10).json()["version"]
    addresses = parse_address(tcp_address), parse_address(http_address)
    sessions = dict(transcript.sessions)

    def play(session: Step) -> None:
        sessions[session["id"]] = Recorder(*addresses, typed=header["framing"] == "v2").record(session)

    with _auth_server(header["flags"]):
        for number, at_once in enumerate((MAX_CONCURRENT_SESSIONS, MAX_CONCURRENT_SESSIONS, 1)):
            todo = [session for session in transcript.sessions.values() if phase(session) == number]
            Pool(at_once).map(play, todo)
    return Transcript({**header, "server": f"{kind} {version}"}, sessions)


@contextlib.contextmanager
def _auth_server(flags: str) -> Iterator[None]:
    """Run the auth server that the flags name, if they do."""
    found = re.search(r"--auth-http-address=(\S+)", flags)
    with contextlib.ExitStack() as stack:
        if found:
            stack.enter_context(FakeAuthServer(answer=RecordedAnswers(), http_address=found[1]))
        yield


def compare(old: Transcript, new: Transcript) -> list[str]:
    """Return the differences as lines."""
    lines = []
    for name in sorted(old.sessions.keys() | new.sessions.keys()):
        before, after = (readable(transcript.sessions.get(name)) for transcript in (old, new))
        if before != after:
            title = (new.sessions.get(name) or old.sessions[name])["title"]
            lines.append(f"{name}: {title}")
            changes = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
            lines += [f"    {line}" for line in changes if not line.startswith("@@")]
    return lines


def readable(session: Step | None) -> list[str]:
    """Write a session as lines: one for each step, frame or part of a response."""
    if session is None:
        return []
    lines = []
    for number, step in enumerate(session["steps"], 1):
        for key, value in step.items():
            for item in value if key == "frames" else value.items() if key == "answer" else [value]:
                lines.append(f"step {number} {key}: {_text(item)}")
    return [*lines, f"stopped: {session['stopped']}"] if "stopped" in session else lines


def _text(item: Any) -> str:
    """Write JSON, with hex as text."""
    if isinstance(item, dict):
        item = {key: value for key, value in item.items() if key not in REMARKS}
    return re.sub(r"(?<![^\"}])((?:[0-9a-f]{2})+)(?=[\"{])", _decoded, json.dumps(item))


def _decoded(found: re.Match[str]) -> str:
    return ascii(bytes.fromhex(found[1]).decode("latin-1"))[1:-1]


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m integration.record", description=__doc__.partition("\n")[0])
    parser.add_argument("sessions", nargs="?", type=Path, help="file of sessions to play")
    parser.add_argument("--address", help="HOST:PORT of the server's TCP")
    parser.add_argument("--http-address", help="HOST:PORT of the server's HTTP")
    parser.add_argument(
        "--compare", nargs=2, type=Path, metavar=("OLD", "NEW"), help="show what differs, and exit 1 if so"
    )
    wanted = parser.parse_args(words)
    if wanted.compare:
        old, new = map(load_file, wanted.compare)
        changes = compare(old, new)
        print(
            f"{old.header['server']} -> {new.header['server']}: {len(changes)} lines of differences", *changes, sep="\n"
        )
        return bool(changes)
    if not (wanted.sessions and wanted.address and wanted.http_address):
        parser.error("give SESSIONS, --address and --http-address; or --compare OLD NEW")
    recorded = record(load_file(wanted.sessions), wanted.address, wanted.http_address)
    for line in (recorded.header, *recorded.sessions.values()):
        print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
