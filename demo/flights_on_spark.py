"""The demo's last part, run by the Python of Spark's environment while the demo's cluster is up.

    python flights_on_spark.py BOOTSTRAP INPUT.csv DIRECTORY PLOT.png

The topic is archived to a Delta table (to plain Parquet files where Delta's jars cannot be had), and rolled up by Spark
into departures and mean delay by carrier and month. Exit status 0 only if the archive holds what the topic holds,
record by record (`pipeline verify`), and the same query on the input file says the same.
"""

from __future__ import annotations

import calendar
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no screen is needed

from matplotlib import pyplot
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from highwater.errors import UserError
from highwater.spark.pipelines import archive, verify
from highwater.spark.pipelines.archive import ArchiveFormat, ArchiveOptions
from highwater.spark.pipelines.session.delta_session import NoDeltaError
from highwater.spark.pipelines.verify import VerifyOptions

TOPIC = "flights"
MONTHS = range(1, 13)
ROLLUP = """
    SELECT carrier, month, count(*) AS departures, sum(dep_delay) AS delay, count(dep_delay) AS delays
    FROM {source} GROUP BY carrier, month
"""
FIELDS = "carrier STRING, month INT, dep_delay INT"

screen = Console(highlight=False)


@dataclass(frozen=True)
class Cell:
    """Of one carrier in one month. A departure that was cancelled has no delay."""

    departures: int
    delay: int  # minutes, of all together
    delays: int  # departures that have one

    @property
    def mean_delay(self) -> float:
        return self.delay / self.delays if self.delays else 0.0

    def __add__(self, other: Cell) -> Cell:
        return Cell(self.departures + other.departures, self.delay + other.delay, self.delays + other.delays)


NOTHING = Cell(0, 0, 0)
Cells = Mapping[tuple[str, int], Cell]


def rolled_up(spark: SparkSession, source: str) -> Cells:
    rows = spark.sql(ROLLUP.format(source=source)).collect()
    return {(row.carrier, row.month): Cell(row.departures, row.delay or 0, row.delays) for row in rows}


def from_archive(spark: SparkSession, archived: DataFrame) -> Cells:
    archived.createOrReplaceTempView("archived")
    parsed = f"SELECT from_json(string(value), '{FIELDS}') AS row FROM archived"
    spark.sql(f"SELECT row.* FROM ({parsed})").createOrReplaceTempView("flights")
    return rolled_up(spark, "flights")


def from_input(spark: SparkSession, file: Path) -> Cells:
    spark.read.csv(str(file), header=True, nullValue="NA").createOrReplaceTempView("lines")
    spark.sql("SELECT carrier, int(month), int(dep_delay) FROM lines").createOrReplaceTempView("input")
    return rolled_up(spark, "input")


def carriers(cells: Cells) -> list[str]:
    """Those with the most departures first."""
    totals: dict[str, int] = {}
    for (carrier, _), cell in cells.items():
        totals[carrier] = totals.get(carrier, 0) + cell.departures
    return sorted(totals, key=lambda carrier: -totals[carrier])


def show(cells: Cells) -> None:
    """Departures, and below them the mean delay."""
    table = Table(box=None, padding=(0, 0, 0, 1), pad_edge=False, header_style="bold")
    table.add_column("")
    for month in MONTHS:
        table.add_column(calendar.month_abbr[month], justify="right", min_width=4)
    table.add_column("year", justify="right")
    for carrier in carriers(cells):
        months = [cells.get((carrier, month), NOTHING) for month in MONTHS]
        row = [*months, sum(months, NOTHING)]
        table.add_row(carrier, *(f"{cell.departures}" if cell.departures else "" for cell in row))
        table.add_row("", *(f"{cell.mean_delay:.1f}" if cell.delays else "" for cell in row), style="dim")
    screen.print(table)


def plot(cells: Cells, file: Path) -> None:
    names = carriers(cells)
    figure, (above, below) = pyplot.subplots(2, figsize=(9, 9), height_ratios=(1, 2), layout="constrained")
    bottoms = [0] * len(MONTHS)
    for carrier, colour in zip(names, pyplot.get_cmap("tab20").colors, strict=False):
        heights = [cells.get((carrier, month), NOTHING).departures for month in MONTHS]
        above.bar(list(MONTHS), heights, bottom=bottoms, label=carrier, color=colour)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    above.set(title="Departures from New York, 2013, by carrier", ylabel="departures")
    above.set_ylim(0, max(bottoms) * 1.05)
    above.legend(reverse=True, fontsize="x-small", loc="center left", bbox_to_anchor=(1, 0.5))
    delays = [
        [cell.mean_delay if (cell := cells.get((carrier, month), NOTHING)).delays else float("nan") for month in MONTHS]
        for carrier in names
    ]
    image = below.imshow(delays, aspect="auto", cmap="RdYlGn_r", vmin=-10, vmax=40)
    below.set_yticks(range(len(names)), names)
    below.set_title("Mean delay of departure, minutes")
    figure.colorbar(image, ax=below)
    for axes, ticks in ((above, list(MONTHS)), (below, range(len(MONTHS)))):
        axes.set_xticks(ticks, [calendar.month_abbr[month] for month in MONTHS])
    pyplot.savefig(file, dpi=100)


def main(bootstrap: str, input_file: str, directory: str, plot_file: str) -> int:
    archived = Path(directory) / "archive"
    started = time.monotonic()
    options = ArchiveOptions(
        bootstrap=bootstrap,
        topic=[TOPIC],
        to=str(archived),
        checkpoint=str(Path(directory) / "checkpoint"),
        # A short run spends more on compiling than it gets back.
        conf=["spark.sql.shuffle.partitions=4", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"],
    )
    kind, what = ArchiveFormat.DELTA, "a Delta table"
    try:
        try:
            archive.run(options)
        except NoDeltaError:
            screen.print("without the jars of Delta Lake, which cannot be fetched here: plain Parquet files instead")
            kind, what = ArchiveFormat.PARQUET, "plain files"
            archive.run(replace(options, format=kind))
    except UserError as error:
        screen.print(f"[red]{error}[/red]")
        return 1
    spark = SparkSession.builder.getOrCreate()
    took = time.monotonic() - started
    rows = spark.read.format(str(kind)).load(str(archived))
    screen.print(f"Spark {spark.version}: {rows.count():,} records archived as {what} in {took:.1f} s")
    cells = from_archive(spark, rows)
    screen.print("rolled up: departures, and their mean delay in minutes")
    show(cells)
    same = cells == from_input(spark, Path(input_file))
    screen.print("the same query on the input file: " + ("[green]equal[/green]" if same else "[red]DIFFERENT[/red]"))
    plot(cells, Path(plot_file))
    screen.print(f"plot: {os.path.relpath(plot_file)}")
    started = time.monotonic()
    try:
        verify.run(VerifyOptions(archive=str(archived), bootstrap=bootstrap))
    except UserError as error:
        screen.print(f"[red]{error}[/red]")
        return 1
    screen.print(f"verified in {time.monotonic() - started:.1f} s")
    spark.stop()
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
