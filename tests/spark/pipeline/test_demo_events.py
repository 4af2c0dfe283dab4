import datetime as dt
import json

import pytest

from gnsq.spark.pipeline.demo import SPAN, START, account, generate, read_lines


def events(bodies):
    found = []
    for body in bodies:
        try:
            event = json.loads(body)
            dt.datetime.fromisoformat(event["time"])
        except ValueError:
            continue
        if event["page"]:
            found.append(event)
    return found


def test_same_seed_same_events():
    assert list(generate(200, 7)) == list(generate(200, 7))
    assert list(generate(200, 7)) != list(generate(200, 8))


def test_a_small_share_is_malformed():
    bodies = list(generate(20_000, 1))

    assert len(bodies) == 20_000
    assert 20 < len(bodies) - len(events(bodies)) < 200
    assert all(bodies)


def test_some_events_come_late():
    times = [dt.datetime.fromisoformat(event["time"]) for event in events(generate(20_000, 1))]

    latest, late = times[0], 0
    for time in times:
        latest = max(latest, time)
        late += latest - time > dt.timedelta(minutes=10)
    assert 50 < late < 400
    assert START - dt.timedelta(hours=1) < min(times)
    assert max(times) <= START + SPAN


def test_pages_are_not_equally_popular():
    pages = [event["page"] for event in events(generate(5_000, 1))]

    assert pages.count("/") > 5 * pages.count("/products/30")


def test_lost_and_duplicated_events_show():
    assert list(account(10, 9, 1, 9, 9).values()) == [True, True]
    assert list(account(10, 9, 0, 9, 8).values()) == [False, False]
    assert list(account(10, 9, 1, 10, 9).values()) == [True, False]


def test_no_events():
    assert list(generate(0, 1)) == []


def test_lines_of_a_file(tmp_path):
    path = tmp_path / "some.jsonl"
    path.write_bytes(b'{"a":1}\r\n\nnot json\n\xff\xfe\nlast')

    assert list(read_lines(path)) == [b'{"a":1}', b"not json", b"\xff\xfe", b"last"]


def test_missing_file_raises(tmp_path):
    with pytest.raises(FileNotFoundError):
        list(read_lines(tmp_path / "none"))
