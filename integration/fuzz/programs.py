"""Programs for nsqd and nsqlookupd: strategies that know the grammar of commands and HTTP requests, valid and not.

A program is a list of actions. Nothing in it depends on the time: no timeout ends, and no delay, within a session.
Where fakensqd differs from nsqd and says so (docs/pages/fakensqd/differences.md), the strategies leave that out.
"""

from __future__ import annotations

import functools
import json
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote

from hypothesis import strategies as st

from fakensqd.options import NsqdOptions
from tests.fakensqd.recorded_auth import ANSWERS
from tests.strategies import values

# Tokens in the data of an action, as in a recorded session. {ID:n} is the id of the nth message that is received.
RUN = b"{RUN}"
# Whatever else data has in braces, by chance, is data.
TOKENS = re.compile(rb"(\{RUN\}|\{ID:\d+\})")


@dataclass(frozen=True)
class Send:
    """Send data over a connection, which is opened if it is not open.

    Attributes:
        replies: How many responses follow in the state before SUB. After SUB, a recording finds that out.
        ends: The client then shuts down its side, since the data may be an incomplete command.
    """

    connection: str
    data: bytes
    replies: int = 1
    ends: bool = False


@dataclass(frozen=True)
class Ask:
    """Do an HTTP request."""

    method: str
    path: str
    body: bytes | None = None
    chunked: bool = False


Program = list[Send | Ask]
Data = st.SearchStrategy[bytes]


def length(data: bytes) -> int:
    """Return the length of data with values in place of tokens."""
    return len(data) + sum((8 if token == RUN else 16) - len(token) for token in TOKENS.findall(data))


def sized(data: bytes, size: int | None = None) -> bytes:
    return struct.pack(">i", length(data) if size is None else size) + data


def often(usual: st.SearchStrategy, rare: st.SearchStrategy, share: int = 24) -> st.SearchStrategy:
    """Draw from the rare strategy once in ``share`` times."""
    return st.integers(0, share - 1).flatmap(lambda number: rare if number == share - 1 else usual)


def line(*words: Data) -> Data:
    return st.tuples(*words).map(lambda parts: b" ".join(parts) + b"\n")


def exactly(*choices: bytes) -> Data:
    return st.sampled_from(choices)


def one_of_lines(table: str) -> Data:
    """One of the lines of a text in which each character is a byte."""
    return st.sampled_from([line.encode("latin-1") for line in table.split("\n")])


# --- names, numbers, bodies -------------------------------------------------------------------------------------------

# Topic t is the only one with channels: two topics may give two messages the same id, or not.
T = RUN + b"t"
no_line = st.binary(max_size=70).map(lambda data: re.sub(rb"[ \n]", b"", data))
odd_names = one_of_lines(
    '\n#ephemeral\na\r\na\t\n*\na%\n\xc3\xa9\n\xff\n"\na\\\n\x00\n\xe2\x80\x8b\n\xf0\x9f\x98\x80\n\xed\xa0\x80\na#\n'
    "#ephemeral#ephemeral\n\x7f\n" + "x" * 65 + "\n" + "x" * 55 + "#ephemeral"
) | no_line.filter(lambda name: not re.fullmatch(rb"[.a-zA-Z0-9_-]+(#ephemeral)?", name))
topics = often(exactly(T, T, T, RUN + b"u", RUN + b".-_", RUN + b"v#ephemeral"), odd_names)
channels = often(exactly(b"c", b"c", b"d", b"c#ephemeral", b"x" * 64), odd_names)
odd_numbers = one_of_lines(
    f"\n-1\n+1\n1.0\n1e2\nx\n0x1\n1_0\n \n\xd9\xa1\n00\n0\r\n{2**63}\n{2**64}\n{2**64 - 1}\n{2**63 - 1}\n{'9' * 30}"
)
ids = often(st.integers(1, 4).map(b"{ID:%d}".__mod__), exactly(b"f" * 16, b"f" * 15, b"f" * 17, b"", b"\xff" * 16), 6)
bodies = st.binary(min_size=1, max_size=12)
odd_words = st.lists(no_line, max_size=2).map(lambda words: b"".join(b" " + word for word in words))


def near(*limits: float) -> Data:
    """Numbers beside limits; without those that are a short time in ms."""
    numbers = [round(limit) + step for limit in limits for step in (-1, 0, 1)]
    return exactly(b"0", *(b"%d" % number for number in numbers if number < 0 or number > 50_000))


def sizes_near(limit: int) -> st.SearchStrategy[int]:
    return st.sampled_from([0, -1, -(2**31), 2**31 - 1, limit + 1, limit + 2])


# --- commands of nsqd -------------------------------------------------------------------------------------------------


@functools.cache
def publishes(options: NsqdOptions) -> Data:
    """PUB, DPUB and MPUB."""
    small = options.max_msg_size <= 1000
    limits = [options.max_msg_size - 1, options.max_msg_size, options.max_msg_size + 1] if small else [1]
    large = st.sampled_from(limits).map(lambda size: b"x" * size)
    messages = often(bodies, large)
    body = often(messages.map(sized), st.builds(sized, st.just(b""), sizes_near(options.max_msg_size)))
    delays = often(exactly(b"0", b"0", b"60000"), near(options.max_req_timeout * 1000) | odd_numbers, 12)
    lists = st.lists(messages, min_size=1, max_size=4)
    most = (options.max_body_size - 4) // 5
    batch = st.builds(_batch, lists, often(st.none(), st.sampled_from([0, -1, most + 1, 2**31 - 1])))
    batch_size = often(st.none(), sizes_near(options.max_body_size))
    return st.one_of(
        st.builds(bytes.__add__, line(exactly(b"PUB"), topics), body),
        st.builds(bytes.__add__, line(exactly(b"DPUB"), topics, delays), body),
        st.builds(lambda head, data, size: head + sized(data, size), line(exactly(b"MPUB"), topics), batch, batch_size),
    )


def _batch(messages: list[bytes], count: int | None = None) -> bytes:
    return struct.pack(">i", len(messages) if count is None else count) + b"".join(map(sized, messages))


@functools.cache
def identities(options: NsqdOptions, *, upgraded: bool) -> Data:
    """Bodies of IDENTIFY.

    Args:
        upgraded: After TLS or compression, nsqd answers an output_buffer_size in clear bytes; and a client can't know
            where a second compressed stream begins.
    """

    def setting(good: list[object], *bad: float) -> st.SearchStrategy:
        return often(st.sampled_from([0, *good]), st.sampled_from([-2, 2**63, 1.0, True, "1", None, [], *bad]))

    def ms(seconds: float) -> int:
        return round(seconds * 1000)

    names = st.text(max_size=6) | st.just("é\u2028<&>\x00")
    timeouts = [ms(options.min_output_buffer_timeout), ms(options.max_output_buffer_timeout)]
    size = options.max_output_buffer_size
    fields = {
        "client_id": names,
        "hostname": names,
        "user_agent": names,
        # Shorter ones would send heartbeats during a session.
        "heartbeat_interval": setting([-1, 0, 0], 999, ms(options.max_heartbeat_interval) + 1),
        "output_buffer_timeout": setting([-1, *timeouts], timeouts[0] - 1, timeouts[1] + 1),
        "output_buffer_size": setting([-1, 64, size], 63, size + 1),
        # Others would let nsqd leave out messages at random.
        "sample_rate": setting([0], -1, 99, 100),
        "msg_timeout": setting([60_000, ms(options.max_msg_timeout)], 999, ms(options.max_msg_timeout) + 1),
        "deflate_level": setting([-1, 1, 3, 9]),
        "max_rdy_count": st.integers(),
    }
    layers = {name: st.booleans() for name in ("tls_v1", "snappy", "deflate")}
    if upgraded:
        del fields["output_buffer_size"]
        layers = {}
    asked = st.fixed_dictionaries(
        {"feature_negotiation": often(st.just(True), st.just(False))}, optional=layers | fields
    )
    plain = asked.map(lambda found: json.dumps(found).encode())
    return often(plain, st.builds(_spoilt, plain, st.integers(0, 400), odd_json) | odd_json, 8)


# JSON, and what is nearly JSON.
odd_json = st.one_of(
    one_of_lines(
        """\
null\n{}\n[]\n1\n"x"\n {} \n{}x\n{},\n\xef\xbb\xbf{}\n\x0c{}\n{'a':1}\n{"a":01}\n{"a":1,}\n{"a":NaN}\n{"a":-}\ntru
{"a":1.}\n{"a":.5}\n{"a":+1}\n{"a":1e999}\n{"a":[1 2]}\n{"a" "b"}\n{"client_id":"\xff"}\n{"client_id":"\\ud800"}
{"client_id":"\\u00"}\n{"client_id":"\t"}\n{"client_id":"a\\/\\b"}\n{"client_id":"\\x41"}\n{"client\\u005fid":"a"}
{"CLIENT_ID":"a","client_id":null}\n{"user_agent":{"a":1}}\n{"sample_rate":1e0}\n{"sample_rate":2147483648}
{"deflate":"true"}\n{"\xc5\xbfnappy":true}\n{"tl\xc5\xbf_v1":1}
"""
    ),
    exactly(b"[" * 10_001 + b"]" * 10_001),
    st.dictionaries(st.sampled_from(["client_id", "Hostname", "sample_rate", "x"]), values, max_size=3).map(
        lambda found: json.dumps(found).encode()
    ),
)


def _spoilt(data: bytes, position: int, piece: bytes) -> bytes:
    position %= len(data) + 1
    return data[:position] + piece + data[position + 1 :]


secrets = often(
    exactly(*(RUN + b":" + name.encode() for name in ("all", "all", "all", *ANSWERS, "echo", "status-500", "x"))),
    st.builds(lambda rest: RUN + b":hex:" + rest, st.binary(max_size=8)) | st.binary(max_size=5),
)


@functools.cache
def commands(options: NsqdOptions, *, subscribed: bool, upgraded: bool) -> Data:
    """Commands that nsqd accepts in a state, most of them valid; some that it does not accept there."""
    identify = st.builds(
        lambda body, size: b"IDENTIFY\n" + sized(body, size),
        identities(options, upgraded=upgraded),
        often(st.none(), sizes_near(options.max_body_size)),
    )
    subscribe = line(exactly(b"SUB"), often(exactly(T), topics, 4), channels)
    authenticate = st.builds(
        lambda words, body, size: b"AUTH" + words + b"\n" + sized(body, size),
        often(st.just(b""), odd_words),
        secrets,
        often(st.none(), sizes_near(options.max_body_size)),
    )
    counts = often(exactly(b"0", b"1", b"2", b"5"), near(options.max_rdy_count) | odd_numbers, 16)
    ready = line(exactly(b"RDY"), counts) | st.just(b"RDY\n")
    delays = often(exactly(b"0", b"0", b"60000"), near(options.max_req_timeout * 1000) | odd_numbers, 12)
    finish, touch = line(exactly(b"FIN"), ids), line(exactly(b"TOUCH"), ids)
    requeue = line(exactly(b"REQ"), ids, delays)
    before = [identify, subscribe] + [authenticate] * (3 * bool(options.auth_http_addresses))
    after = [ready, ready, finish, finish, requeue, touch, exactly(b"CLS\n")]
    both = [publishes(options), publishes(options)]
    here, elsewhere = (after + both, before) if subscribed else (before + both, after)
    few_words = st.sampled_from([b"SUB", b"SUB a", b"PUB", b"DPUB a", b"MPUB", b"FIN", b"REQ", b"REQ a", b"TOUCH"])
    odd = st.one_of(
        *elsewhere,
        authenticate,
        few_words.map(lambda words: words + b"\n"),
        exactly(b"\n", b" \n", b"pub t\n", b"NOP x\n", b" NOP\n", b"NOP\r\r\n", b"PUB\tt\n"),
    )
    return often(st.one_of(*here), odd)


@st.composite
def nsqd_programs(draw: Callable, options: NsqdOptions, *, consumes: bool = True) -> Program:
    """Draw a program for nsqd.

    Args:
        consumes: False if nsqd's statistics can't be asked whether all messages were sent.
    """
    program: Program = []
    # What most commands need.
    needed = b"AUTH\n" + sized(RUN + b":all") if options.auth_http_addresses else b""
    if options.tls_policy:
        needed = b"IDENTIFY\n" + sized(b'{"feature_negotiation": true, "tls_v1": true}')
    subscribed: dict[str, bool] = {}
    upgraded: set[str] = set()
    consumers: dict[bytes, str] = {}
    if consumes and draw(st.booleans()):
        consumers[b"c"] = "x"
        subscribed["x"] = True
        program += [Send("x", needed)] * bool(needed)
        program.append(Send("x", b"MPUB " + T + b"\n" + sized(_batch(draw(st.lists(bodies, min_size=1, max_size=4))))))
        program += [Send("x", b"SUB " + T + b" c\n"), Send("x", b"RDY 2\n")]
    for _ in range(draw(st.integers(1, 24))):
        if draw(st.integers(0, 5)) == 0:
            program.append(draw(nsqd_requests))
            continue
        name = draw(st.sampled_from("xxy"))
        if needed and name not in subscribed and draw(st.integers(0, 3)):
            program.append(Send(name, needed))
            upgraded |= {name} if needed.startswith(b"IDENTIFY") else set()
        is_subscribed = subscribed.setdefault(name, False)
        if draw(st.integers(0, 15)) == 0:
            # Messages that nsqd has in its output buffer are lost at the end.
            program += [Send(name, b"RDY 0\n")] * is_subscribed
            program.append(Send(name, draw(odd_bytes(options, subscribed=is_subscribed)), ends=True))
            del subscribed[name]
            upgraded.discard(name)
            continue
        data = draw(commands(options, subscribed=is_subscribed, upgraded=name in upgraded))
        verb, *words = data.partition(b"\n")[0].split(b" ")
        if verb == b"SUB" and len(words) > 1:
            if not consumes:
                continue
            # Messages of a channel with two consumers go to any of them.
            if consumers.setdefault(words[1], name) != name:
                continue
            subscribed[name] = words[0] == T and re.fullmatch(rb"[.a-z0-9_-]+(#ephemeral)?", words[1]) is not None
        elif verb == b"IDENTIFY":
            upgraded.add(name)
        replies = 1
        if not is_subscribed and verb in (b"PUB", b"MPUB", b"NOP"):
            more = draw(st.lists(publishes(options) | exactly(b"NOP\n"), max_size=2))
            data = b"".join([data, *more])
            replies += sum(each != b"NOP\n" for each in more)
        program.append(Send(name, data, replies - (verb == b"NOP")))
    return program


@functools.cache
def odd_bytes(options: NsqdOptions, *, subscribed: bool) -> Data:
    """Bytes of which any part may be missing, and commands without a response.

    No SUB to an ephemeral channel: whether nsqd's topic has given it a message before it is deleted with its only
    client is not certain.
    """
    command = commands(options, subscribed=subscribed, upgraded=True).filter(
        lambda data: not re.match(rb"RDY|SUB .*#ephemeral", data)
    )
    nop = st.integers(0, 2).map(lambda count: b"NOP\n" * count)
    return st.one_of(
        st.builds(lambda data, cut: data[: cut % (len(data) + 1)], command, st.integers(0, 2000)),
        st.builds(lambda before, data: before + data, nop, st.binary(max_size=20)),
        st.builds(
            lambda count, data: b"x" * count + data, st.sampled_from([16382, 16383, 16384, 16385]), exactly(b"\n", b"")
        ),
        st.builds(lambda data, words: re.sub(rb"\n", lambda _: words + b"\n", data, count=1), command, odd_words),
    )


# --- HTTP -------------------------------------------------------------------------------------------------------------

odd_values = st.binary(max_size=12).map(quote) | st.sampled_from(
    ["", "%", "%zz", "a+b", "a;b", "%00", "%ff", "a=b", "%2B", "*", "x" * 65, "é".encode().hex()]
)
names_over_http = often(
    st.sampled_from(["{RUN}t", "{RUN}t", "{RUN}u", "{RUN}v%23ephemeral", "%7BRUN%7D"]), odd_values, 10
)
channels_over_http = often(st.sampled_from(["c", "c", "d", "c%23ephemeral"]), odd_values)


def query(*parameters: tuple[str, st.SearchStrategy[str]]) -> st.SearchStrategy[str]:
    """Queries with these parameters; seldom without one, with one twice, or in another way."""
    parts = [often(value.map(f"{name}={{}}".format), st.just(""), 12) for name, value in parameters]
    tails = st.sampled_from(["", "", "&x=1", "&", "&topic", "&topic=a", ";x", "&%", "#x", "?"])
    return st.builds(
        lambda found, tail: "&".join(filter(None, found)) + tail, st.tuples(*parts), often(st.just(""), tails)
    )


TOPIC, CHANNEL = ("topic", names_over_http), ("channel", channels_over_http)
flag = st.sampled_from(["true", "1", "false", "0", "", "x", "True"])
delays_over_http = st.sampled_from(
    ["0", "60000", "-1", "x", "", "1.0", "3600000", "3600001", "9" * 20, "%2B60000", "00"]
)
levels = st.sampled_from([b"info", b"INFO", b"", b"x", b"\xff"])
lookupds = st.sampled_from([b"[]", b"{}", b"[1]", b"", b"[", b'"a"', b"[[]]", b"[" * 10_001])
binary_bodies = st.builds(
    lambda data, cut, junk: data[: len(data) - cut] + junk,
    st.lists(bodies, max_size=3).map(lambda found: _batch(found)),
    often(st.just(0), st.integers(0, 20), 4),
    often(st.just(b""), st.binary(max_size=3), 4),
)
lines = st.lists(st.binary(max_size=6) | st.just(b"\r"), max_size=4).map(b"\n".join)


def paths(method: str, path: str, *parameters: tuple[str, st.SearchStrategy[str]], body: Data | None = None):
    """Requests of one path, mostly right."""
    methods = often(
        st.just(method), st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "X"]), 12
    )
    targets = query(*parameters).map(lambda found: f"{path}?{found}" if found else path)
    return st.builds(
        Ask, methods, targets, st.none() if body is None else body, st.just(False) if body is None else st.booleans()
    )


nsqd_requests = st.one_of(
    paths("POST", "/pub", TOPIC, body=often(bodies, st.just(b""))),
    paths("POST", "/pub", TOPIC, ("defer", delays_over_http), body=bodies),
    paths("POST", "/mpub", TOPIC, body=lines),
    paths("POST", "/mpub", TOPIC, ("binary", flag), body=binary_bodies),
    *(paths("POST", f"/topic/{verb}", TOPIC) for verb in ("create", "delete", "empty", "pause", "unpause")),
    *(paths("POST", f"/channel/{verb}", TOPIC, CHANNEL) for verb in ("create", "delete", "empty", "pause", "unpause")),
    paths("GET", "/ping"),
    st.sampled_from(
        ["/stats?format=json&include_mem=false&include_clients=false&topic={RUN}t&channel=" + name for name in "cx"]
    ).map(lambda path: Ask("GET", path)),
    st.sampled_from(["max_msg_size", "node_id", "tls_required", "msg_timeout", "x", "mem_queue_size"]).flatmap(
        lambda name: paths("GET", f"/config/{name}")
    ),
    paths("PUT", "/config/log_level", body=levels),
    paths("PUT", "/config/nsqlookupd_tcp_addresses", body=lookupds),
    st.sampled_from(["/", "/nope", "/pub/x", "/config", "/config/", "/topic", "/put", "/info/x"]).flatmap(
        lambda path: paths("GET", path)
    ),
)

# --- nsqlookupd -------------------------------------------------------------------------------------------------------

lookupd_requests = st.one_of(
    *(paths("POST", f"/topic/{verb}", TOPIC) for verb in ("create", "delete")),
    *(paths("POST", f"/channel/{verb}", TOPIC, CHANNEL) for verb in ("create", "delete")),
    paths("POST", "/topic/tombstone", TOPIC, ("node", st.sampled_from(["x:4151", "y:4151", "x", "", "x:z"]))),
    paths("GET", "/lookup", TOPIC),
    paths("GET", "/lookup", TOPIC),
    paths("GET", "/channels", TOPIC),
    *(paths("GET", path) for path in ("/ping", "/info", "/", "/nope", "/lookup/x")),
).filter(lambda ask: "topic=*" not in ask.path and "topic=%2A" not in ask.path)


@st.composite
def lookupd_programs(draw: Callable) -> Program:
    """Draw a program for nsqlookupd."""
    program: Program = []
    port = often(st.just(4151), st.sampled_from([0, -1, "1", None, 1.5, 2**63, True]))
    text = often(st.just("x"), st.sampled_from(["", None, 1, "é\u2028<"]))
    names = line(exactly(b"REGISTER", b"UNREGISTER"), topics) | line(
        exactly(b"REGISTER", b"UNREGISTER"), topics, channels
    )
    blanks = exactly(
        b"PING\n", b" PING \t\r\n", b"PING x\n", b"PING\x0b\n", b"REGISTER\n", b"UNREGISTER  \n", b"\n", b"x\n"
    )
    for _ in range(draw(st.integers(1, 12))):
        if draw(st.integers(0, 2)) == 0:
            program.append(draw(lookupd_requests))
            continue
        name = draw(st.sampled_from("xy"))
        peer = st.fixed_dictionaries(
            {"broadcast_address": st.just(name), "tcp_port": port, "http_port": port, "version": text, "hostname": text}
        ).map(lambda found: json.dumps(found).encode())
        identify = often(peer, st.builds(_spoilt, peer, st.integers(0, 100), odd_json) | odd_json).map(
            lambda body: b"IDENTIFY\n" + sized(body)
        )
        if not any(isinstance(each, Send) and each.connection == name for each in program) and draw(st.integers(0, 5)):
            program.append(Send(name, draw(identify)))
        elif draw(st.integers(0, 11)) == 0:
            whole = st.one_of(identify, names)
            cut = st.builds(lambda data, at: data[: at % (len(data) + 1)], whole, st.integers(0, 200))
            program.append(
                Send(name, draw(cut | st.binary(max_size=12).filter(lambda data: b"IDENTIFY" not in data)), ends=True)
            )
        else:
            program.append(Send(name, draw(often(names, identify | blanks, 4))))
    return program
