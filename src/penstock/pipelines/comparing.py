"""The SQL that finds rows of a target that are not what they should be. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.pipelines.merging import TargetTable, arrays_sql, named, table_sql


def compare_sql(table: TargetTable, expected: str) -> str:
    """Keys as text, then for each measure what it should be and what it is, where they differ.

    `expected` is a relation with what should be: the dimensions as k0, k1…, as text, and the
    measures as m0, m1… Its parameters come first, then arrays of what is parked, which counts as
    there. Grouping takes NULLs as equal, which no join could that is fast.
    """
    keys = [f"k{number}" for number in range(len(table.dimensions))]
    should = [f"e{number}" for number in range(len(table.measures))]
    found = [f"f{number}" for number in range(len(table.measures))]
    both = [name for pair in zip(should, found, strict=True) for name in pair]
    typed = [f"{k}::{c.type} AS {k}" for k, c in zip(keys, table.dimensions, strict=True)]
    zeros = ["0"] * len(table.measures)
    shown_keys = [named(column.name) for column in table.dimensions]
    shown_sums = [named(column.name) for column in table.measures]
    given = [f"m{number}" for number in range(len(table.measures))]
    return f"""
SELECT {_list(f"{key}::text" for key in keys)}, {_list(both)}
  FROM (
    SELECT {_list(keys)}, {_list(f"sum({name}) AS {name}" for name in both)}
      FROM (
        SELECT {_list(typed)}, {_list(f"{m} AS {e}" for m, e in zip(given, should, strict=True))},
               {_list(f"0 AS {name}" for name in found)}
          FROM {expected}
         UNION ALL
        SELECT {_list(shown_keys + zeros + shown_sums)} FROM {table_sql(table)}
         UNION ALL
        SELECT {_list(typed + zeros + given)} FROM {arrays_sql(table)}
      ) AS together
     GROUP BY {_list(keys)}
    HAVING {" OR ".join(f"sum({e}) <> sum({f})" for e, f in zip(should, found, strict=True))}
  ) AS different
 ORDER BY {_list(keys)}
"""  # noqa: S608 - names are quoted, values are parameters


def _list(parts: Iterable[str]) -> str:
    return ", ".join(parts)
