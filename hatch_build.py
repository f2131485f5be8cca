"""Build hook: makes the gRPC stubs (`highwater.v1`) from `proto/`, for wheels and editable installs alike, and
beside them a descriptor set with the comments, of which `docs/reference/generate.py` makes the reference."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
DESCRIPTORS = "descriptors.binpb"  # a FileDescriptorSet; wheels leave it out


def generate(root: Path = ROOT) -> None:
    """Writes `services/highwater/v1/` anew; raises `RuntimeError` where protoc refuses a file."""
    import grpc_tools  # noqa: PLC0415  (a build requirement, not one of the backend that imports this file)
    from grpc_tools import protoc  # noqa: PLC0415

    source = root / "proto"
    target = root / "services"
    package = target / "highwater" / "v1"
    scratch = Path(tempfile.mkdtemp(prefix="highwater-stubs-"))
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    plugins = Path(sys.executable).parent
    arguments = ["protoc", f"-I{source}", f"-I{well_known}"]
    for name in ("mypy", "mypy_grpc"):
        plugin = plugins / f"protoc-gen-{name}"
        found = str(plugin) if plugin.exists() else shutil.which(f"protoc-gen-{name}")
        if found is None:
            raise RuntimeError(f"protoc-gen-{name} is missing: install mypy-protobuf")
        arguments.append(f"--plugin=protoc-gen-{name}={found}")
    arguments += [f"--{kind}_out={scratch}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    arguments += ["--include_source_info", f"--descriptor_set_out={scratch / DESCRIPTORS}"]
    arguments += [str(path) for path in sorted((source / "highwater" / "v1").glob("*.proto"))]
    if protoc.main(arguments) != 0:
        raise RuntimeError("protoc failed, see its messages above")
    made = scratch / "highwater" / "v1"
    (scratch / DESCRIPTORS).rename(made / DESCRIPTORS)
    (made / "__init__.py").write_text('"""Generated from proto/highwater/v1 by the build. Not kept in git."""\n')
    package.mkdir(parents=True, exist_ok=True)
    for stale in package.glob("*.py*"):
        if not (made / stale.name).exists():
            stale.unlink()
    for path in made.iterdir():
        os.replace(shutil.copy(path, package / f".{path.name}"), package / path.name)
    shutil.rmtree(scratch)


class StubsBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if (ROOT / "proto").is_dir():
            generate()


if __name__ == "__main__":
    generate()
