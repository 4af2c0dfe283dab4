"""The fixtures, in test runs of their own."""

import re

import pytest

from tests.kit import run_program

pytest_plugins = ["pytester"]


@pytest.fixture
def outcomes(pytester, monkeypatch):
    """Run a test file; give back how many passed, failed and so on, and the output."""
    # There pytest's summary repeats whole errors.
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # others that are installed take long

    def run(code):
        pytester.makepyfile(code)
        # The plugin is imported already.
        options = ["-p", "fakensqd.pytest_plugin", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        result = pytester.runpytest_inprocess("-q", *options)
        return result.parseoutcomes(), result.stdout.str()

    return run


def test_fixtures_give_each_test_a_new_running_server(outcomes):
    found, _ = outcomes(
        """
        import urllib.request
        import pytest

        def post(address, target):
            return urllib.request.urlopen(f"http://{address}{target}", data=b"x", timeout=10).read()

        @pytest.mark.parametrize("round", [1, 2])
        def test_nsqd(fakensqd, round):
            assert fakensqd.broker.topics == {}
            assert post(fakensqd.http_address, "/pub?topic=t") == b"OK"

        def test_lookupd(fakelookupd):
            assert post(fakelookupd.http_address, "/topic/create?topic=t") == b""

        def test_cluster(fakecluster):
            assert len(fakecluster.nsqds) == 2
        """
    )

    assert found == {"passed": 4}


CONSUMER = """
    import gevent
    import pytest
    from gnsq import Consumer, Producer

    {marker}
    def test_body(fakensqd):
        def handle(consumer, message):
            pytest.{outcome}("the body is wrong")

        with Producer(fakensqd.tcp_address) as producer:
            producer.publish("t", b"x")
        with Consumer("t", "c", fakensqd.tcp_address, message_handler=handle, threaded={threaded}):
            {wait}

    def test_next():
        gevent.sleep(0)
"""


IN_HUB = "@pytest.mark.fakensqd(threaded=False)"
WAIT_UNTIL = "fakensqd.wait_until(lambda nsqd: nsqd.depth('t') == 7, timeout=100.0)"


@pytest.mark.parametrize(
    ("outcome", "marker", "wait", "threaded"),
    [
        pytest.param("fail", "", "gevent.event.Event().wait()", False, id="fail in a wait"),
        pytest.param("fail", "", WAIT_UNTIL, False, id="fail in wait_until"),
        pytest.param("fail", "", WAIT_UNTIL, True, id="fail in a thread"),
        pytest.param("fail", IN_HUB, "gevent.event.Event().wait()", False, id="fail in the hub"),
        pytest.param("skip", "", WAIT_UNTIL, False, id="skip in wait_until"),
    ],
)
def test_outcome_that_a_handler_raises_ends_the_test(outcomes, outcome, marker, wait, threaded):
    found, output = outcomes(CONSUMER.format(outcome=outcome, marker=marker, wait=wait, threaded=threaded))

    assert found == {"failed" if outcome == "fail" else "skipped": 1, "passed": 1}
    assert outcome == "skip" or "Failed: the body is wrong" in output


def test_outcome_that_a_rule_raises_ends_the_test(outcomes):
    found, output = outcomes(
        """
        import pytest
        from fakensqd.faults import drop, on
        from gnsq import Producer

        def fail(event):
            pytest.fail("what was published is wrong")

        def test_rule(fakensqd):
            fakensqd.add(on.command("PUB", where=fail), drop())
            with Producer(fakensqd.tcp_address) as producer:
                producer.publish("t", b"x")
        """
    )

    assert found == {"failed": 1}
    assert "Failed: what was published is wrong" in output


def test_timer_that_is_left_over_fails_the_test(outcomes):
    found, output = outcomes(
        """
        def test_nsqd(fakensqd):
            fakensqd.clock.call_later(3600, print)
        """
    )

    assert found == {"passed": 1, "errors": 1}
    assert "1 watcher of the hub left over after" in output


PUBLISH = """
        import urllib.request
        from fakensqd import on
        from fakensqd.faults import disconnect, drop

        def post(address, target):
            return urllib.request.urlopen(f"http://{address}{target}", data=b"x", timeout=10).read()
"""


def test_rule_that_never_fired_fails_the_test(outcomes):
    found, output = outcomes(
        PUBLISH
        + """
        def test_nsqd(fakensqd):
            fakensqd.add(on.http("/pub", topic="u"), drop())
            post(fakensqd.http_address, "/pub?topic=t")
        """
    )

    assert found == {"passed": 1, "errors": 1}
    assert "on.http('/pub', topic='u'), drop(): nearest was /pub topic='t': topic is 't', not 'u'" in output
    assert "http POST /pub t b'x' 200" in output
    assert "FakeNsqd, seed=" in output


WAITS = """
        from fakensqd import FakeNsqd

        def test_nsqd(fakensqd, fakecluster):
            post(fakensqd.http_address, "/pub?topic=t")
            {server}.record()
            {server}.wait_until(lambda nsqd: nsqd.depth("never"), 3, timeout=0.05)
"""


@pytest.mark.parametrize("server", ["fakensqd", "fakecluster.nsqds[0]"])
def test_failed_wait_shows_the_line_of_the_test_and_the_transcript_once(outcomes, server):
    found, output = outcomes(PUBLISH + WAITS.format(server=server))

    assert found == {"failed": 1}
    assert "not so within 0.05 s: expected 3, nearest was 0" in output
    assert output.count("http POST /pub t b'x' 200") == 1
    assert "test_failed_wait" in output
    assert ".py:" in output
    assert not [line for line in output.splitlines() if line.startswith(("fakensqd/", "gnsq/"))]
    assert not re.search(r"(waiting|threads?)\.py", output)


def test_failed_assertions_show_what_came_instead_and_the_transcript_once(outcomes):
    found, output = outcomes(
        PUBLISH
        + """
        def test_body(fakensqd):
            fakensqd.add(on.http("/ping"), drop())
            post(fakensqd.http_address, "/pub?topic=order")
            fakensqd.assert_published("orders", b"x")

        def test_transcript(fakensqd):
            post(fakensqd.http_address, "/pub?topic=bill")
            assert len(fakensqd.transcript.finished("bill", "c")) == 1
        """
    )

    assert found == {"failed": 2}  # and no error of the rule
    assert "FakeNsqd, seed=" in output
    assert "E       it was published to topic 'order'" in output
    assert output.count("http POST /pub order b'x' 200") == 1
    assert "<Transcript of 1 entry: 1 x POST /pub bill>" in output


@pytest.mark.subprocess
def test_plugin_imports_no_gevent_until_a_fixture_is_used():
    code = "import sys, fakensqd.pytest_plugin; print(sorted(m for m in sys.modules if m in ('gevent', 'requests')))"

    assert run_program(code, flags=()).stdout.strip() == "[]"


def test_markers_set_options_of_a_test_or_a_module(outcomes):
    found, _ = outcomes(
        """
        import pytest

        pytestmark = pytest.mark.fakensqd(max_rdy_count=7)

        @pytest.fixture
        def fakensqd_options():
            return {"max_rdy_count": 5, "max_msg_size": 100}

        def test_module(fakensqd):
            assert (fakensqd.options.max_rdy_count, fakensqd.options.max_msg_size) == (7, 100)

        @pytest.mark.fakensqd(max_rdy_count=9)
        def test_test(fakensqd):
            assert fakensqd.options.max_rdy_count == 9

        @pytest.mark.fakecluster(nsqds=3, lookupds=2)
        def test_cluster(fakecluster):
            assert (len(fakecluster.nsqds), len(fakecluster.lookupds)) == (3, 2)

        @pytest.mark.fakelookupd(tombstone_lifetime=1.0)
        def test_lookupd(fakelookupd):
            assert fakelookupd.options.tombstone_lifetime == 1.0
        """
    )

    assert found == {"passed": 4}


SESSION = (
    PUBLISH
    + """
        import pytest

        @pytest.fixture(scope="session")
        def address(fakensqd_session):
            return fakensqd_session.http_address
"""
)


def test_server_of_the_session_is_reset_after_each_test(outcomes):
    found, _ = outcomes(
        SESSION
        + """
        @pytest.fixture
        def late(fakensqd_session, fakecluster_session):
            yield
            fakensqd_session.publish("t", b"from the end of a fixture")
            fakecluster_session.publish("t", b"y")

        addresses = set()

        @pytest.mark.parametrize("round", [1, 2])
        def test_nsqd(address, late, fakensqd_session, fakecluster_session, round):
            addresses.update([address, *fakecluster_session.nsqd_tcp_addresses])
            assert len(addresses) == 3
            post(address, "/pub?topic=t")
            assert fakensqd_session.messages("t") == [b"x"]
            assert [str(entry.kind) for entry in fakensqd_session.transcript] == ["http"]
            assert fakecluster_session.messages("t") == []
        """
    )

    assert found == {"passed": 2}


@pytest.mark.parametrize(
    "later", ["", "def test_later(address): pass"], ids=["in the last test", "before the last test"]
)
@pytest.mark.parametrize(
    ("line", "errors", "text"),
    [
        ('fakensqd_session.add(on.http("/ping"), drop())', 1, "drop(): nothing of that kind happened"),
        ('fakensqd_session.add(on.http("/ping"), drop()); assert False', 0, "http POST /pub t b'x' 200"),
        ("fakensqd_session._spawn(lambda: 1 / 0)", 1, "internal error of the emulator: ZeroDivisionError"),
    ],
    ids=["rule", "failed test with a rule", "internal error"],
)
def test_fault_in_a_session_fails_only_its_own_test(outcomes, line, errors, text, later):
    found, output = outcomes(
        SESSION
        + f"""
        def test_first(address, fakensqd_session):
            post(address, "/pub?topic=t")
            {line}

        {later}
        """
    )

    failed = {"errors": 1, "passed": 1 + bool(later)} if errors else {"failed": 1} | ({"passed": 1} if later else {})
    assert found == failed
    assert text in output
