"""The options by which a command of this package finds etcd and the cluster in it."""

from __future__ import annotations

import argparse
from pathlib import Path

from highwater.errors import UserError
from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.store import Store
from highwater.metadata.store.tls import TlsSettings


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--etcd", required=True, help="host:port of etcd's members, separated by commas")
    parser.add_argument("--cluster", default="highwater", help="everything in etcd stands under /highwater/<cluster>")
    parser.add_argument("--etcd-ca-file", type=Path, help="PEM of the authority of etcd's certificates; turns TLS on")
    parser.add_argument("--etcd-certificate-file", type=Path, help="PEM of the client's certificate")
    parser.add_argument("--etcd-key-file", type=Path, help="PEM of that certificate's key")


def store_of(given: argparse.Namespace) -> Store:
    """Raises `UserError`."""
    files = (given.etcd_ca_file, given.etcd_certificate_file, given.etcd_key_file)
    tls = TlsSettings(*files) if any(files) else None
    return Store([each.strip() for each in given.etcd.split(",") if each.strip()], tls=tls)


def keys_of(given: argparse.Namespace) -> Keys:
    """Raises `UserError`."""
    try:
        return Keys(given.cluster)
    except ValueError as error:
        raise UserError(str(error)) from error
