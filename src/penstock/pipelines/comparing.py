"""The SQL that finds rows of a target that are not what they should be. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.pipelines.merging import TargetTable, named, table_sql


def compare_sql(table: TargetTable) -> str:
    """Keys as text, then for each measure what it should be and what it is, where they differ.

    Parameters are arrays of what should be: one for each dimension, as text, one for each measure;
    then the same of what is parked, which counts as there. Grouping takes NULLs as equal, which no
    join could that is fast.
    """
    keys = [f"k{number}" for number in range(len(table.dimensions))]
    should = [f"e{number}" for number in range(len(table.measures))]
    found = [f"f{number}" for number in range(len(table.measures))]
    both = [name for pair in zip(should, found, strict=True) for name in pair]
    typed = [f"{k}::{c.type} AS {k}" for k, c in zip(keys, table.dimensions, strict=True)]
    zeros = ["0"] * len(table.measures)
    shown_keys = [named(column.name) for column in table.dimensions]
    shown_sums = [named(column.name) for column in table.measures]
    arrays = ["%s::text[]" for _ in keys] + ["%s::numeric[]" for _ in should]
    return f"""
SELECT {_list(f"{key}::text" for key in keys)}, {_list(both)}
  FROM (
    SELECT {_list(keys)}, {_list(f"sum({name}) AS {name}" for name in both)}
      FROM (
        SELECT {_list(typed)}, {_list(should)}, {_list(f"0 AS {name}" for name in found)}
          FROM unnest({_list(arrays)}) AS u ({_list(keys + should)})
         UNION ALL
        SELECT {_list(shown_keys + zeros + shown_sums)} FROM {table_sql(table)}
         UNION ALL
        SELECT {_list(typed + zeros + found)}
          FROM unnest({_list(arrays)}) AS p ({_list(keys + found)})
      ) AS together
     GROUP BY {_list(keys)}
    HAVING {" OR ".join(f"sum({e}) <> sum({f})" for e, f in zip(should, found, strict=True))}
  ) AS different
 ORDER BY {_list(keys)}
"""  # noqa: S608 - names are quoted, values are parameters


def _list(parts: Iterable[str]) -> str:
    return ", ".join(parts)
