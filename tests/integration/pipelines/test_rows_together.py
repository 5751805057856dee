"""Rows come together by the columns in which many are equal, and stay what they are."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.pipelines import source_columns
from penstock.pipelines.rows_read import Rows
from penstock.postgres import packing, pages
from penstock.postgres.snapshots import snapshot
from support.database import Database
from support.reading_columns import explain, packed_and_copied, read, values


# Of the servers here only Debian's knows such collations.
@pytest.mark.parametrize("server", [15], indirect=True)
def test_equal_values_that_are_not_printed_alike_stay_what_they_are(
    database: Database,
) -> None:  # M4.6: rows come together only by columns of which equal values are the same
    database.run(
        "CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level2',"
        " deterministic = false)",
        "CREATE TABLE notifications (word text COLLATE any_case, number double precision,"
        " span interval, blank bpchar, status text)",
        "INSERT INTO notifications VALUES ('a', 0, '1 day', 'x', 's'), ('A', '-0', '24:00',"
        " 'x ', 's'), ('a', 0, '1 day', 'x', 's')",
    )
    packed, copied = packed_and_copied(database, "blank", "number", "span", "status", "word")
    assert packed == copied
    assert len(set(packed)) == 2


def test_rows_never_come_together_by_columns_that_hide_a_value(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:  # M4.6: equal ones that are not printed alike, of types with whichever name
    monkeypatch.setattr(pages, "_PAGES_AT_ONCE", 20)
    database.run(
        'CREATE DOMAIN public."date" AS interval',
        'CREATE TABLE notifications (id int, blank bpchar, named public."date", number float8,'
        " span interval, status text)",
        "INSERT INTO notifications SELECT n, CASE n % 2 WHEN 0 THEN 'x' ELSE 'x ' END, v, f, v, 's'"
        " FROM (SELECT n, (CASE n % 2 WHEN 0 THEN '1 day' ELSE '24:00' END)::interval AS v,"
        " (CASE n % 2 WHEN 0 THEN '0' ELSE '-0' END)::float8 AS f"
        " FROM generate_series(1, 6000) AS n) AS made",
    )
    columns = ("blank", "id", "named", "number", "span", "status")
    with snapshot(database.dsn()) as source:
        found = list(read(source, *columns))
        with monkeypatch.context() as patched:
            patched.setattr(source_columns, "leaf_pages", lambda *_: {})
            assert values(found) == values(list(read(source, *columns)))
    together = [{each.name for each in rows.shared} for rows in found]
    assert together[0] == set()
    assert together[1] == {"status"}


def test_rows_come_together_by_what_many_of_them_have(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.5: the first rows tell; where that is no longer so, the next ones do
    monkeypatch.setattr(pages, "_PAGES_AT_ONCE", 20)
    database.run(
        # As it may be where nobody thought of this.
        f"ALTER DATABASE {database.name} SET enable_hashagg = off",
        f"ALTER DATABASE {database.name} SET work_mem = '64kB'",
        "CREATE TABLE notifications (id int, service text, status text, job uuid, _1 int)",
        "INSERT INTO notifications SELECT n, 'service ' || n % 20, NULLIF(n % 3, 0)::text,"
        " md5((n / 100)::text)::uuid, 1 FROM generate_series(1, 10000) AS n",
        # From then on each has a service of its own.
        "INSERT INTO notifications SELECT n, 'other ' || n, NULLIF(n % 3, 0)::text,"
        " md5((n / 100)::text)::uuid, 1 FROM generate_series(10001, 20000) AS n",
    )
    portions: list[packing.PackedRows] = []
    plans: list[str] = []
    rows_of_portion = source_columns._rows

    def watched(portion: packing.PackedRows, columns: Any) -> Rows:
        portions.append(portion)
        return rows_of_portion(portion, columns)

    monkeypatch.setattr(source_columns, "_rows", watched)
    names = ["id", "service", "status", "job", "_1"]
    with snapshot(database.dsn()) as source:
        explain(source.connection, plans, monkeypatch)
        found = values(list(read(source, *names)))
    with database.connect() as connection:
        rows = connection.execute("SELECT _1, id, job, service, status FROM notifications")
        expected = [
            (one, False, number, False, str(job), False, service, False, status, False)
            for one, number, job, service, status in rows
        ]
    assert found == sorted(expected, key=repr)
    service, status, job, one = 1, 2, 3, 4
    first, second, *_, last = (portion.shared for portion in portions)
    assert first == frozenset()
    # Of each service, there are several jobs.
    assert second == {service, status, one}
    assert last == {status, job, one}
    assert len(portions[1].sizes) == 60
    assert {portion.shared for portion in portions} == {first, second, last}
    together = [plan for plan in plans if "Group Key: notifications" in plan]
    assert len(together) > 5
    assert all("HashAggregate" in plan and "Sort" not in plan for plan in together)
    # In memory, whatever the database is set to.
    assert not any("Disk" in plan for plan in together)


def test_groups_that_do_not_fit_into_memory_are_what_they_are(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.5: slower, and not wrong
    monkeypatch.setitem(packing._SETTINGS, "work_mem", "64kB")
    database.run(
        "CREATE TABLE notifications (id int, service text, status text)",
        "INSERT INTO notifications SELECT n, 'service ' || n % 1500, NULLIF(n % 2, 0)::text"
        " FROM generate_series(1, 6000) AS n",
    )
    plans: list[str] = []
    with snapshot(database.dsn()) as source, monkeypatch.context() as patched:
        patched.setattr(packing.Packing, "packed", by_service_and_status(packing.Packing.packed))
        patched.setattr(source_columns, "_shared_by_next", lambda *_: None)
        explain(source.connection, plans, patched)
        found = values(list(read(source, "id", "service", "status")))
    assert "Disk Usage" in plans[-1]
    rows = database.rows("SELECT id, service, status FROM notifications")
    expected = [(n, False, service, False, status, False) for n, service, status in rows]
    assert found == sorted(expected, key=repr)


def by_service_and_status(packed: Any) -> Any:
    def grouped(self: packing.Packing, pages: Any, _: frozenset[int] = frozenset()) -> Any:
        return packed(self, pages, frozenset({1, 2}))

    return grouped
