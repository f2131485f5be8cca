"""The last words of a run."""

from __future__ import annotations

from collections.abc import Mapping

from soak.state import KindFigures, Soak

_HEAD = ("fault", "times", "longest heal, s", "longest pause, s", "findings")


def table(kinds: Mapping[str, KindFigures]) -> str:
    """Faults by kind. An episode of several kinds counts for each of them."""
    rows = [_HEAD] + [
        (kind, str(one.faults), f"{one.longest_heal_s:.1f}", f"{one.longest_pause_s:.1f}", str(one.findings))
        for kind, one in sorted(kinds.items())
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def summary(soak: Soak, settings: Mapping[str, str], outcome: str) -> str:
    ended = ", ".join(f"{count} {what}" for what, count in sorted(soak.clients.items())) or "none"
    return "\n".join(
        [
            "",
            table(soak.kinds),
            "",
            f"flush modes: {', '.join(f'{key}={value}' for key, value in settings.items()) or 'the defaults'}",
            f"client processes: {ended}",
            f"seed {soak.seed}: {sum(soak.acked.values())} records acknowledged, {len(soak.values)} keys, "
            f"{soak.topics} topics ({soak.refused_topics} refused), {outcome}",
        ]
    )
