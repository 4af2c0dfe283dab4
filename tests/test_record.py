"""Record the responses of a server to recorded sessions, and show the differences."""

import json

import pytest

from integration.record import main
from tests.fakensqd.transcripts import load, load_file, phase

RECORDED = load("nsqd-1.3.0")
QUICK = [session for session in RECORDED.sessions.values() if phase(session) == 0]


@pytest.fixture
def fakensqd_options(clock):
    """No time passes for the server: on a slow machine, a message could time out before it is finished."""
    return {"clock": clock}


@pytest.fixture
def play(fakensqd, tmp_path, capsys):
    """Play short sessions to a server; returns the file with them and the file that was recorded."""

    def play(wanted=lambda session: True, change=lambda line: line):
        sessions = [session for session in QUICK if wanted(session)]
        old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
        header = {**RECORDED.header, "sessions": len(sessions)}
        old.write_text("".join(f"{change(json.dumps(line))}\n" for line in (header, *sessions)))
        assert main([str(old), "--address", fakensqd.tcp_address, "--http-address", fakensqd.http_address]) == 0
        new.write_text(capsys.readouterr().out)
        return old, new

    return play


@pytest.mark.slow
def test_server_with_the_same_responses_gives_the_same_file(play, capsys):
    old, new = play()

    recorded, wanted = load_file(new), load_file(old)
    assert [each for name, each in recorded.sessions.items() if each != wanted.sessions[name]] == []
    assert recorded == wanted
    assert main(["--compare", str(old), str(new)]) == 0
    assert capsys.readouterr().out == "nsqd 1.3.0 -> nsqd 1.3.0: 0 lines of differences\n"


def test_message_with_another_body_is_shown_with_its_placeholder(play, capsys):
    old, new = play(
        lambda session: session["id"] == "flow-fin-twice", lambda line: line.replace("0001{ID:1}78", "0002{ID:1}79")
    )

    assert main(["--compare", str(old), str(new)]) == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        "flow-fin-twice: The second FIN fails",
        '    -step 10 frames: {"type": 2, "attempts": 1, "hex": "{TS:1}\\x00\\x02{ID:1}y"}',
        '    +step 10 frames: {"type": 2, "attempts": 1, "hex": "{TS:1}\\x00\\x01{ID:1}x"}',
    ]
