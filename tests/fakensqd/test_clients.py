"""Clients of all kinds, each as a test of a project that uses it: gevent, asyncio, plain threads.

Other libraries are in the tests of docs/pages/fakensqd/any-client.md.
"""

import asyncio
import socket
import threading

import pytest

import gnsq
from gnsq.protocol import commands
from gnsq.protocol.commands import MAGIC_V2
from gnsq.protocol.frames import MESSAGE, OK, FrameDecoder, decode_message

# --- gevent


@pytest.mark.fakensqd(threaded=False)
def test_gevent_client_in_the_servers_hub(fakensqd):
    got = []

    def handle(consumer, message):
        got.append(message.body)
        consumer.close()

    with gnsq.Producer(fakensqd.tcp_address) as producer:
        producer.publish("orders", b"42")
    gnsq.Consumer("orders", "billing", fakensqd.tcp_address, message_handler=handle).start()

    assert got == [b"42"]
    assert fakensqd.messages("orders") == [b"42"]


# --- asyncio


async def consume_one(address):
    """Subscribe and finish one message, over asyncio's streams."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    decoder, frames = FrameDecoder(), []
    writer.write(MAGIC_V2 + commands.subscribe("orders", "billing") + commands.ready(1))
    while not any(kind == MESSAGE for kind, _ in frames):
        frames += decoder.feed(await reader.read(65536))
    _, _, message_id, body = decode_message(frames[-1][1])
    writer.write(commands.finish(message_id) + commands.close())
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    return body


def test_asyncio_client(fakensqd):
    fakensqd.publish("orders", b"42")

    assert asyncio.run(asyncio.wait_for(consume_one(fakensqd.tcp_address), 10)) == b"42"

    fakensqd.wait_until(lambda nsqd: nsqd.messages("orders", "billing"), [])


# --- plain threads


def publish_in_thread(address, bodies, failures):
    try:
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), timeout=10) as sock:
            sock.sendall(MAGIC_V2)
            decoder = FrameDecoder()
            for body in bodies:
                sock.sendall(commands.publish("orders", body))
                answers = []
                while not answers:
                    answers = decoder.feed(sock.recv(4096))
                assert answers == [(0, OK)]
    except BaseException as error:
        failures.append(error)
        raise


def test_client_on_plain_threads(fakensqd):
    failures = []
    threads = [
        threading.Thread(
            target=publish_in_thread, args=(fakensqd.tcp_address, [b"%d-%d" % (number, n) for n in range(20)], failures)
        )
        for number in range(10)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert failures == []
    assert len(set(fakensqd.messages("orders"))) == 200
