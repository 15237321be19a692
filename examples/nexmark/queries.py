"""The queries: each a pipeline of Penstock, and the same in plain Spark SQL over all events at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import penstock as pen
from penstock import Stream

Sources = Mapping[str, Stream]


@dataclass(frozen=True, slots=True)
class Query:
    """`newest_by` names the key of results that are updated: only the row with the largest `n` of each counts. Where
    results are windows, `closed_by` names the source whose watermark must have passed them."""

    title: str
    build: Callable[[Sources], Stream]
    sql: str
    newest_by: tuple[str, ...] = ()
    closed_by: str | None = None


def currency(sources: Sources) -> Stream:
    def to_euro(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.append_column("euro", pc.round(pc.multiply(batch["price"], 0.908), 2))

    return sources["bids"].map_batches(
        to_euro, "auction bigint, bidder bigint, price bigint, ts timestamp, euro double"
    )


def selection(sources: Sources) -> Stream:
    return sources["bids"].where("auction % 123 = 0").select("auction", "price", "ts")


def local_items(sources: Sources) -> Stream:
    persons = sources["persons"].where("state IN ('OR', 'ID', 'CA')").key_by("id")
    auctions = sources["auctions"].where("category = 10").select("id AS auction", "seller", "ts").key_by("seller")
    joined = persons.join(auctions, within=("-1 h", "1 h"), name="local_items")
    return joined.map_batches(
        _only("name", "city", "state", "auction"), "name string, city string, state string, auction bigint"
    )


def price_per_category(sources: Sources) -> Stream:
    auctions = sources["auctions"].select("id", "category", "ts").key_by("id")
    bids = sources["bids"].key_by("auction")
    return (
        auctions.join(bids, within=("-1 h", "1 h"), name="bids_of_auctions")
        .key_by("category")
        .aggregate(n=pen.count(), price=pen.mean("price"), name="price_per_category")
    )


def hot_items(sources: Sources) -> Stream:
    counts = (
        sources["bids"]
        .key_by("auction")
        .window(pen.sliding_window("10 s", every="2 s"))
        .aggregate(n=pen.count(), name="bids_per_auction")
    )
    return counts.key_by("window_end").aggregate(n=pen.max("n"), name="hottest")


def new_users(sources: Sources) -> Stream:
    return (
        sources["persons"]
        .key_by("state")
        .window(pen.tumbling_window("10 s"))
        .aggregate(n=pen.count(), name="new_users")
    )


def highest_bid(sources: Sources) -> Stream:
    return sources["bids"].key_by("auction").aggregate(n=pen.count(), highest=pen.max("price"), name="highest_bid")


def sessions(sources: Sources) -> Stream:
    return (
        sources["bids"]
        .key_by("bidder")
        .window(pen.session_window("10 s"))
        .aggregate(n=pen.count(), spent=pen.sum("price"), name="sessions")
    )


def _only(*columns: str) -> Callable[[pa.RecordBatch], Any]:
    return lambda batch: batch.select(list(columns))


QUERIES = {
    "q1": Query(
        "currency map: prices of bids in euro",
        currency,
        "SELECT auction, bidder, price, ts, round(price * 0.908D, 2) AS euro FROM bids",
    ),
    "q2": Query(
        "selection: bids on some auctions",
        selection,
        "SELECT auction, price, ts FROM bids WHERE auction % 123 = 0",
    ),
    "q3": Query(
        "local item join: who sells what in three states",
        local_items,
        "SELECT name, city, state, a.id AS auction FROM persons p JOIN auctions a ON p.id = a.seller "
        "WHERE state IN ('OR', 'ID', 'CA') AND category = 10",
    ),
    "q4": Query(
        "average price per category",
        price_per_category,
        "SELECT category, count(*) AS n, avg(price) AS price FROM auctions a JOIN bids b ON a.id = b.auction "
        "GROUP BY category",
        newest_by=("category",),
    ),
    "q5": Query(
        "hot items: the most bids on one auction in each sliding window",
        hot_items,
        "SELECT window_end, max(n) AS n FROM (SELECT auction, window.end AS window_end, count(*) AS n FROM bids "
        "GROUP BY auction, window(ts, '10 seconds', '2 seconds')) GROUP BY window_end",
        newest_by=("window_end",),
        closed_by="bids",
    ),
    "q6": Query(
        "highest bid of each auction",
        highest_bid,
        "SELECT auction, count(*) AS n, max(price) AS highest FROM bids GROUP BY auction",
        newest_by=("auction",),
    ),
    "q7": Query(
        "new users by state and tumbling window",
        new_users,
        "SELECT state, window.start AS window_start, window.end AS window_end, count(*) AS n FROM persons "
        "GROUP BY state, window(ts, '10 seconds')",
        closed_by="persons",
    ),
    "q8": Query(
        "sessions of each bidder",
        sessions,
        "SELECT bidder, session_window.start AS window_start, session_window.end AS window_end, count(*) AS n, "
        "sum(price) AS spent FROM bids GROUP BY bidder, session_window(ts, '10 seconds')",
        closed_by="bids",
    ),
}
