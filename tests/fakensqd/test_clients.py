"""Clients of all kinds, each as a test of a project that uses it: gevent, asyncio, plain threads, other libraries."""

import asyncio
import json
import socket
import threading

import pytest

import gnsq
from gnsq.protocol import commands
from gnsq.protocol.commands import MAGIC_V2
from gnsq.protocol.frames import MESSAGE, OK, FrameDecoder, decode_message
from tests.kit import wait_until

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


# --- other libraries, where they are installed


def test_asyncnsq_client(fakensqd):
    asyncnsq = pytest.importorskip("asyncnsq")
    host, port = fakensqd.tcp_address.split(":")

    async def talk():
        writer = await asyncnsq.create_writer(host=host, port=int(port))
        await writer.pub("orders", "42")
        writer.close()
        reader = await asyncnsq.create_reader(nsqd_tcp_addresses=[f"{host}:{port}"])
        await reader.subscribe("orders", "billing")
        message = await anext(aiter(reader.messages()))
        await message.fin()
        reader.close()
        return message.body

    assert asyncio.run(asyncio.wait_for(talk(), 20)) == b"42"
    wait_until(lambda: len(fakensqd.transcript.finished()) == 1)


def test_pynsq_client(fakensqd):
    nsq = pytest.importorskip("nsq")
    ioloop = pytest.importorskip("tornado.ioloop")
    got = []

    async def talk():
        loop = ioloop.IOLoop.current()
        done = asyncio.Event()

        def handle(message):
            got.append(json.loads(message.body))
            loop.add_callback(done.set)
            return True

        reader = nsq.Reader(
            topic="orders", channel="billing", nsqd_tcp_addresses=[fakensqd.tcp_address], message_handler=handle
        )
        await asyncio.wait_for(done.wait(), 20)
        reader.close()

    fakensqd.publish("orders", b"42")
    asyncio.run(talk())

    assert got == [42]
    wait_until(lambda: len(fakensqd.transcript.finished()) == 1)
