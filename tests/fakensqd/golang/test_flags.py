"""Flags by Go's rules: what is read, what is refused and in which words."""

import pytest

from fakensqd.golang.flags import Flag, FlagError, HelpWanted, configured, parse, parse_duration, usage

FLAGS = (
    Flag("name", "string", meaning="what it is called", default="x"),
    Flag("count", "int"),
    Flag("wait", "duration", "wait"),
    Flag("snappy", "bool", "snappy", True, "offer snappy"),
    Flag("peer", "list", config="peers"),
    Flag("percentile", "floats"),
    Flag("log-level", "log-level"),
    Flag("tls-required", "tls-required"),
    Flag("tls-min-version", "tls-min-version"),
)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ([], {}),
        (["-name=a"], {"name": "a"}),
        (["--name", "a"], {"name": "a"}),
        (["--name="], {"name": ""}),
        (["--name", "-a"], {"name": "-a"}),
        (["--name=a=b"], {"name": "a=b"}),
        (["--name=a", "--name=b"], {"name": "b"}),
        (["--count=-7"], {"count": -7}),
        (["--count=0x1F"], {"count": 31}),
        (["--count=0b11"], {"count": 3}),
        (["--count=9", "x"], {"count": 9}),
        (["--wait=1m30s"], {"wait": 90.0}),
        (["--snappy"], {"snappy": True}),
        (["--snappy=F"], {"snappy": False}),
        (["--snappy", "false", "--name=lost"], {"snappy": True}),
        (["--peer=a", "-peer", "b"], {"peer": ("a", "b")}),
        (["--percentile=0.9,0.5", "--percentile=1"], {"percentile": (0.9, 0.5, 1.0)}),
        (["--log-level=WARN"], {"log-level": "warn"}),
        (["--tls-required"], {"tls-required": "true"}),
        (["--tls-required=TCP-HTTPS"], {"tls-required": "tcp-https"}),
        (["--tls-required=0"], {"tls-required": "false"}),
        (["--tls-min-version=TLS1.2"], {"tls-min-version": "tls1.2"}),
        (["--tls-min-version="], {"tls-min-version": "tls1.0"}),
        (["--name=a", "--", "--count=x"], {"name": "a"}),
        (["-", "--count=x"], {}),
        (["word", "--count=x"], {}),
    ],
    ids=str,
)
def test_what_is_read(words, values):
    assert parse(FLAGS, words) == values


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--foo=1"], "flag provided but not defined: -foo"),
        (["---name"], "bad flag syntax: ---name"),
        (["--=x"], "bad flag syntax: --=x"),
        (["--name"], "flag needs an argument: -name"),
        (["--count=x"], 'invalid value "x" for flag -count: '),
        (["--count=9223372036854775808"], 'invalid value "9223372036854775808" for flag -count: value out of range'),
        (["--wait=60"], 'invalid value "60" for flag -wait: parse error'),
        (["--snappy=maybe"], 'invalid value "maybe" for flag -snappy: parse error'),
        (["--percentile=x"], 'invalid value "x" for flag -percentile: '),
        (["--log-level=loud"], 'invalid value "loud" for flag -log-level: not one of debug, info, warn, error, fatal'),
        (["--tls-required=yes"], 'invalid value "yes" for flag -tls-required: parse error'),
        (["--tls-min-version=ssl"], 'invalid value "ssl" for flag -tls-min-version: not one of tls1.0, '),
    ],
    ids=str,
)
def test_what_is_refused(words, text):
    with pytest.raises(FlagError) as caught:
        parse(FLAGS, words)

    assert str(caught.value).startswith(text)


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help(word):
    with pytest.raises(HelpWanted):
        parse(FLAGS, [word])


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("-0", 0.0),
        ("250ms", 0.25),
        ("1.5s", 1.5),
        (".5m", 30.0),
        ("1.s", 1.0),
        ("2h45m", 9900.0),
        ("-1s", -1.0),
        ("+3us", 3e-6),
        ("3µs", 3e-6),
        ("3μs", 3e-6),  # the other one of the two letters
        ("7ns", 7e-9),
    ],
)
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "-", "1", "s", ".s", "1x", "1s x", "3000000h"])
def test_what_is_no_duration(text):
    with pytest.raises(ValueError, match="parse error"):
        parse_duration(text)


def test_a_configuration_file():
    document = {
        "name": "a",
        "count": 7,
        "wait": "1m",
        "snappy": False,
        "peers": ["a", "b"],
        "percentile": [0.5, 1],
        "tls_required": True,
        "other": 1,
    }

    assert configured(FLAGS, document) == {
        "name": "a",
        "count": 7,
        "wait": 60.0,
        "snappy": False,
        "peer": ("a", "b"),
        "percentile": (0.5, 1.0),
        "tls-required": "true",
    }


@pytest.mark.parametrize("value", [250, "250"])
def test_a_duration_without_a_unit_is_milliseconds_in_a_file(value):
    assert configured(FLAGS, {"wait": value}) == {"wait": 0.25}


@pytest.mark.parametrize("document", [{"count": "x"}, {"count": [1]}, {"name": {}}], ids=str)
def test_a_bad_value_in_a_file(document):
    with pytest.raises(FlagError, match="failed to resolve"):
        configured(FLAGS, document)


def test_usage_names_every_flag():
    text = usage("nsqd", FLAGS)

    assert text.startswith("Usage of nsqd:\n  -count int\n    \taccepted; no meaning here\n")
    assert '  -name string\n    \twhat it is called (default "x")\n' in text
    assert "  -snappy\n    \toffer snappy (default true)\n" in text
    assert "  -tls-required\n" in text
    assert text.count("\n  -") == len(FLAGS)
