"""The options that the commands of `highwater kube` share: which release is meant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from highwater.extras import needing

if TYPE_CHECKING:
    from highwater.kube.release import Release

Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="where the release is; by default the context's namespace")
]
ReleaseName = Annotated[
    str | None, typer.Option("--release", help="its name, where the namespace has several", show_default=False)
]
Context = Annotated[
    str | None, typer.Option(envvar="KUBECONTEXT", help="of the kubeconfig; by default its current one")
]


def release_of(namespace: str | None, name: str | None, context: str | None) -> Release:
    """Raises `UserError`: without the extra `kube` too."""
    with needing("kube", "highwater kube"):
        from highwater.kube.release import Release
    return Release.open(namespace=namespace, name=name, context=context)
