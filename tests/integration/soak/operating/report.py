"""The last words of a run."""

from __future__ import annotations

from collections.abc import Mapping

from soak.operating.state import Operating


def summary(operating: Operating) -> str:
    return "\n".join(
        [
            _line("acts", operating.acts),
            _line("refused, as they should be", operating.refusals),
            *(f"{figure}: {value:.1f} at the most" for figure, value in sorted(operating.longest.items())),
        ]
    )


def _line(name: str, counts: Mapping[str, int]) -> str:
    told = ", ".join(f"{count} {what}" for what, count in sorted(counts.items())) or "none"
    return f"{name}: {told}"
