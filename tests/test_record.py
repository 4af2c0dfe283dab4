"""Recording what a server answers to recorded sessions, and showing what has changed."""

import json

import pytest

from integration.record import compare, main
from tests.fakensqd.transcripts import FILES, Transcript, load, load_file, phase

RECORDED = load("nsqd-1.3.0")
QUICK = [session for session in RECORDED.sessions.values() if phase(session) == 0]


@pytest.fixture
def play(fakensqd, tmp_path, capsys):
    """Records quick sessions of a file; gives the file that was played, and the new one."""

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
def test_unchanged_answers_are_recorded_as_they_stand(play, capsys):
    old, new = play()

    assert load_file(new) == load_file(old)
    assert main(["--compare", str(old), str(new)]) == 0
    assert capsys.readouterr().out == "nsqd 1.3.0 -> nsqd 1.3.0: 0 lines of differences\n"


@pytest.mark.fakensqd(max_rdy_count=100)
def test_changed_answers_are_shown_in_words(play, capsys):
    old, new = play(lambda session: session["id"].startswith("rdy-"))

    assert main(["--compare", str(old), str(new)]) == 1
    shown = capsys.readouterr().out
    assert "E_INVALID RDY count 2501 out of range 0-2500" in shown
    assert "E_INVALID RDY count 2501 out of range 0-100" in shown


def test_sessions_that_came_and_went_are_shown():
    first, second = QUICK[:2]

    lines = compare(Transcript({}, {first["id"]: first}), Transcript({}, {second["id"]: second}))

    assert {line for line in lines if not line.startswith(" ")} == {
        f"{session['id']}: {session['title']}" for session in (first, second)
    }


def test_message_that_differs_keeps_its_name_for_later_steps(play, capsys):
    old, new = play(
        lambda session: session["id"] == "flow-fin-twice", lambda line: line.replace("0001{ID:1}78", "0002{ID:1}79")
    )

    assert main(["--compare", str(old), str(new)]) == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        "flow-fin-twice: The second FIN fails",
        '    -step 10 frames: {"type": 2, "attempts": 1, "hex": "{TS:1}\\x00\\x02{ID:1}y"}',
        '    +step 10 frames: {"type": 2, "attempts": 1, "hex": "{TS:1}\\x00\\x01{ID:1}x"}',
    ]


def test_missing_addresses_are_asked_for(capsys):
    with pytest.raises(SystemExit):
        main([str(FILES / "nsqd-1.3.0.jsonl")])

    assert "give SESSIONS, --address and --http-address; or --compare OLD NEW" in capsys.readouterr().err
