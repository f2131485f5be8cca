"""TLS to etcd: the files, and the words for what is wrong with them."""

from __future__ import annotations

from dataclasses import dataclass, field

from highwater.rpc.connections.tls import TlsFiles, TlsNames

ETCD = TlsNames(
    "etcd.ca.file",
    "etcd.certificate.file",
    "etcd.key.file",
    peers="etcd's members",
    owner="the client",
    use="etcd's TLS",
    to_turn_on="set etcd.ca.file to the authority that signed its certificate",
    to_turn_off="give etcd a certificate, or unset etcd.ca.file and write no https://",
    to_name_peers="name the members in etcd as their certificates do",
    peers_authority="etcd's --trusted-ca-file",
)


@dataclass(frozen=True, slots=True)
class TlsSettings(TlsFiles):
    """The files of a client of etcd: where that authenticates its users, this one is the certificate's common name."""

    names: TlsNames = field(default=ETCD, kw_only=True)
