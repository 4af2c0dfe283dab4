"""What a listing of a spool asks its store, and what it makes of the answers."""

import pytest

from gnsq.spark.offsets import Segment
from gnsq.spark.spool.listing import PAGE, SpoolListing


class MemoryStore:
    """Files in memory, on a store that lists names in their order; records what it is asked.

    Attributes:
        unseen: Paths that the next listing of their directory lacks, as those of files that appear meanwhile.
    """

    lists_in_order = True

    def __init__(self, *paths):
        self.files = set(paths)
        self.unseen = set()
        self.asked = []

    def directories(self):
        return {path.partition("/")[0] for path in self.files}

    def names(self, directory, after=""):
        self.asked.append((directory, after) if after else directory)
        found = [path for path in self.files if path.startswith(f"{directory}/") and path not in self.unseen]
        self.unseen = set()
        return {name for path in found if (name := path.partition("/")[2]) > after}

    def first_name(self, directory):
        self.asked.append(f"first of {directory}")
        return min((path.partition("/")[2] for path in self.files if path.startswith(f"{directory}/")), default=None)


def path(number, receiver="r1"):
    return Segment(receiver, number, 10, 1).path


def listed(store, *, is_whole=True):
    listing = SpoolListing()
    listing.update(store, is_whole=is_whole)
    store.asked.clear()
    return listing


def numbers(listing):
    return [segment.number for segment in listing.segments]


def large_store():
    return MemoryStore(*(path(number) for number in range(1, PAGE + 1)))


def test_large_directory_is_listed_after_the_last_name():
    store = large_store()
    listing = listed(store)
    store.files |= {path(PAGE + 1), "r1/closed.json"}

    listing.update(store, is_whole=False)

    assert store.asked == [("r1", f"{PAGE + 1:012d}")]
    assert len(listing.segments) == PAGE + 1
    assert listing.closed == {"r1"}


def test_small_directory_is_listed_from_the_first_name():
    store = MemoryStore(path(1), path(2))
    listing = listed(store)
    store.files.remove(path(1))

    listing.update(store, is_whole=False)

    assert store.asked == ["r1"]
    assert numbers(listing) == [2]
    assert listing.size == 10


@pytest.mark.parametrize("known", [0, 1, PAGE], ids="{} known".format)
def test_skipped_number_is_listed_again(known):
    store = MemoryStore(*(path(number) for number in range(1, known + 1)))
    listing = listed(store)
    store.files |= {path(known + 1), path(known + 2)}
    store.unseen = {path(known + 1)}

    listing.update(store, is_whole=False)

    assert numbers(listing)[-2:] == [known + 1, known + 2]


def test_number_that_stays_missing_is_looked_for_once():
    store = MemoryStore(path(1), path(3))

    listing = listed(store)
    listing.update(store, is_whole=False)

    assert numbers(listing) == [1, 3]
    assert store.asked == ["r1"]


def test_segments_of_a_receiver_whose_files_were_all_deleted_go_on_after_the_last_number():
    store = MemoryStore(path(1), path(2))
    listing = listed(store)
    store.files.clear()
    listing.update(store, is_whole=False)
    assert (numbers(listing), listing.receivers) == ([], set())

    store.files.add(path(3))
    listing.update(store, is_whole=False)

    assert store.asked == ["r1"]
    assert numbers(listing) == [3]


def test_quarantined_and_deleted_files_of_a_large_directory_are_seen_by_a_whole_listing():
    store = large_store()
    listing = listed(store)
    store.files -= {path(7), path(8)}
    store.files.add(path(7) + ".corrupt")

    listing.update(store, is_whole=False)
    assert (len(listing.segments), listing.rows_quarantined) == (PAGE, 0)
    listing.update(store)

    assert len(listing.segments) == PAGE - 2
    assert listing.quarantined == {Segment("r1", 7, 10, 1)}


def test_deleted_segments_at_the_beginning_are_seen_by_one_request_more():
    store = large_store()
    listing = listed(store)
    store.files -= {path(number) for number in range(1, 11)}
    store.files.add(path(PAGE + 1))

    listing.update(store, is_whole=False, sees_deletions=True)

    assert store.asked == [("r1", f"{PAGE + 1:012d}"), "first of r1"]
    assert numbers(listing) == [*range(11, PAGE + 2)]


@pytest.mark.parametrize("left", [path(1) + ".corrupt", "r1/closed.json"], ids=["a quarantined segment", "no segment"])
def test_deletions_are_seen_if_the_first_name_is_not_a_segments(left):
    store = MemoryStore(*(path(number) for number in range(1, PAGE + 1)))
    listing = listed(store)
    store.files = {left}

    listing.update(store, is_whole=False, sees_deletions=True)

    assert numbers(listing) == []


def test_segment_seen_with_both_names_is_quarantined_at_last():
    store = MemoryStore(path(1), path(1) + ".corrupt")
    listing = listed(store)
    store.files.remove(path(1))

    listing.update(store)

    assert (numbers(listing), listing.rows_quarantined) == ([], 1)


def test_receiver_has_ended_after_its_last_segment_is_removed():
    store = MemoryStore(path(1), path(2), "r1/closed.json", path(1, "r2"))
    listing = listed(store)

    listing.remove_up_to({"r1": 1, "r2": 1})
    assert listing.ended == set()
    listing.remove_up_to({"r1": 2})

    assert listing.ended == {"r1"}
