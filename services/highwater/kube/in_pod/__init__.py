"""Scripts that `highwater kube` sends into containers and runs there with `python -c`: an image need not have them.

Each is one file, uses Python's library and what every image of Highwater has, and ends by itself.
"""

from __future__ import annotations

import inspect
from types import ModuleType


def python(script: ModuleType, *arguments: str) -> list[str]:
    """The command that runs it in a container."""
    return ["python", "-c", inspect.getsource(script), *arguments]
