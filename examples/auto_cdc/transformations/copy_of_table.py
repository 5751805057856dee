"""A copy of a Postgres table that follows it: what is inserted, updated, deleted here and there.

PENSTOCK_LOG is the directory that `penstock capture` writes, PENSTOCK_TABLE the table's name,
PENSTOCK_KEYS the columns of its primary key.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession


@dp.temporary_view
def changes() -> DataFrame:
    spark = SparkSession.active()
    return (
        spark.readStream.format("penstock")
        .options(path=os.environ["PENSTOCK_LOG"], table=os.environ["PENSTOCK_TABLE"])
        .load()
    )


dp.create_streaming_table("copy_of_table")

dp.create_auto_cdc_flow(
    target="copy_of_table",
    source="changes",
    keys=os.environ["PENSTOCK_KEYS"].split(","),
    # The commit, then the place in it. What a row was before an update comes before what it is.
    sequence_by="struct(_commit_version, _seq, _change_type = 'update_postimage')",
    # An update may have changed the key: whatever was there before goes. Where the key stayed the
    # same, the new row comes later in sequence, and wins.
    apply_as_deletes="_change_type IN ('delete', 'update_preimage')",
    # The copy has the table's own columns. One caution: an update that does not touch a large value
    # (TOAST) comes without it, NULL here and named in _unchanged. Where that matters, give the
    # table REPLICA IDENTITY FULL, keep large columns out with the option `columns`, or apply the
    # changes in a way that looks at _unchanged.
    except_column_list=[
        "_change_type",
        "_commit_version",
        "_commit_timestamp",
        "_seq",
        "_xid",
        "_unchanged",
        "_absent",
    ],
    stored_as_scd_type=1,
)
