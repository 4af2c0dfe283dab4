"""Publish ten clicks a second until SIGTERM. One in a hundred is malformed."""

import datetime as dt
import itertools
import json
import random
import signal
import sys
import time

import gnsq

with gnsq.NsqdHTTPClient.from_url("nsqd:4151") as http:
    http.create_topic("clicks")
    # The pipeline's channels get all clicks, although Spark starts later.
    http.create_channel("clicks", "clicks")
    http.create_channel("clicks", "pages")
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
# A publish waits while nsqd is away. What nsqd may have got is published again.
options = {"publish_timeout": 3600, "allow_duplicates": True}
with gnsq.Producer("nsqd:4150", **options) as producer:
    for number in itertools.count(1):
        click = {
            "id": number,
            "at": dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds"),
            "user": random.choice(["ann", "bob", "cem", "dag"]),
            "page": random.choice(["/", "/search", "/cart"]),
            "ms": random.randint(5, 500) if number % 100 else "slow",
        }
        producer.publish("clicks", json.dumps(click).encode())
        if number % 100 == 0:
            print(number, "clicks are confirmed")
        time.sleep(0.1)
