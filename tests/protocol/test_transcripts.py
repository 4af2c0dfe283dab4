"""What was recorded from real servers, as this side sees it: every error frame has its class and its fatality, and
the recorded commands are what the builders build."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from gnsq.errors import NSQErrorCode, make_error
from gnsq.protocol import commands
from gnsq.protocol.frames import CLOSE_WAIT, ERROR, HEARTBEAT, MESSAGE, OK, FrameDecoder, decode_message, encode_frame
from tests.protocol.decoder import CommandDecoder

FILES = Path(__file__).parent.parent / "vectors" / "transcripts"
NAMES = sorted(path.stem for path in FILES.glob("nsqd-*.jsonl"))
TOKEN = re.compile(r"\{([A-Z]+)((?::\w+)*)\}")


def sample(token):
    """Bytes, in hex, that a token may stand for."""
    name, _, arguments = token[0][1:-1].partition(":")
    if name == "REP":
        byte, count = arguments.split(":")
        return byte * int(count)
    texts = {"RUN": "abcdefgh", "TS": "12345678", "ID": f"{arguments.zfill(16)}", "VERSION": "1.3.0", "REST": "EOF"}
    return texts.get(name, "4150").encode().hex()


def expand(template):
    return bytes.fromhex(TOKEN.sub(sample, template))


def sessions(name):
    return [json.loads(line) for line in (FILES / f"{name}.jsonl").read_text().splitlines()[1:]]


def received(name):
    """Every step that received something, with its frames as (type, data)."""
    for session in sessions(name):
        for step in session["steps"]:
            if step["do"] == "recv":
                yield session["id"], step, [(frame["type"], expand(frame["hex"])) for frame in step["frames"]]


def test_recordings_are_here():
    assert len(NAMES) == 5


@pytest.mark.parametrize("name", NAMES)
def test_frames_are_decoded(name):
    for session_id, _, frames in received(name):
        stream = b"".join(encode_frame(kind, data) for kind, data in frames)
        assert FrameDecoder().feed(stream) == frames, session_id
        for kind, data in frames:
            if kind == MESSAGE:
                timestamp, attempts, message_id, body = decode_message(data)
                assert (timestamp > 0, attempts > 0, len(message_id)) == (True, True, 16), session_id
                assert data.endswith(body)


@pytest.mark.parametrize("name", NAMES)
def test_error_frames_have_a_class_and_are_fatal_where_nsqd_closes(name):
    for session_id, step, frames in received(name):
        errors = [make_error(data) for kind, data in frames if kind == ERROR]
        assert NSQErrorCode not in map(type, errors), session_id
        if frames and frames[-1][0] == ERROR and step.get("closed"):
            assert errors[-1].fatal, session_id
        if "quiet" in step:
            assert not any(error.fatal for error in errors), session_id


# By command: builds it from the words and the body that a server has read. IDENTIFY's JSON has no one form.
BUILDERS = {
    b"AUTH": lambda words, body: commands.auth(body),
    b"SUB": lambda words, body: commands.subscribe(*words),
    b"PUB": lambda words, body: commands.publish(*words, body),
    b"DPUB": lambda words, body: commands.deferpublish(words[0], body, int(words[1])),
    b"MPUB": lambda words, body: commands.multipublish(*words, commands.split_multipublish_body(body)),
    b"RDY": lambda words, body: commands.ready(int(words[0])),
    b"FIN": lambda words, body: commands.finish(*words),
    b"REQ": lambda words, body: commands.requeue(words[0], int(words[1])),
    b"TOUCH": lambda words, body: commands.touch(*words),
    b"CLS": lambda words, body: commands.close(),
    b"NOP": lambda words, body: commands.nop(),
}
NUMBERS = {b"RDY": 0, b"DPUB": 1, b"REQ": 1}
WORDS = {b"SUB": 2, b"DPUB": 2, b"REQ": 2, b"AUTH": 0, b"CLS": 0, b"NOP": 0}


def read_commands(data):
    """Return the complete commands in some bytes, up to a malformed one."""
    decoder = CommandDecoder()
    decoder.feed(data)
    try:
        while (command := decoder.next_command()) is not None:
            yield command
    except ValueError:
        return


def normal(command):
    """A command without surplus words, its number as we write it."""
    words = list(command.args[: WORDS.get(command.name, 1)])
    number = NUMBERS.get(command.name)
    if number is not None:
        words[number] = b"%d" % int(words[number])
    return commands.Command(command.name, tuple(words), command.body)


def rebuilt(command):
    """Build a command again. Returns: None if the builder refuses it, as many recorded ones."""
    try:
        return BUILDERS[command.name](
            [word.decode() for word in command.args[: WORDS.get(command.name, 1)]], command.body
        )
    except (ValueError, TypeError, IndexError, KeyError):
        return None


def test_commands_are_built_as_they_were_sent():
    built = Counter()
    for session in [session for name in NAMES for session in sessions(name)]:
        for step in session["steps"]:
            sent = expand(step["hex"]).removeprefix(commands.MAGIC_V2) if step["do"] == "send" else b""
            for command in read_commands(sent):
                again = rebuilt(command)
                if again is not None:
                    built[command.name] += 1
                    assert list(read_commands(again)) == [normal(command)], session["id"]

    assert {name for name in BUILDERS if built[name] >= 5} == set(BUILDERS)


def test_the_three_responses_that_are_no_answers_to_publish_are_known():
    seen = Counter(data for name in NAMES for _, _, frames in received(name) for kind, data in frames if kind == 0)

    assert min(seen[OK], seen[HEARTBEAT], seen[CLOSE_WAIT]) >= 5
