"""Who there is, and how each shows who they are: by a certificate, or by a token over the certificate of nobody."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from highwater.atomic_file import replace_file
from highwater.security.principal import parse_principal
from highwater.security.tokens import make_token
from soak.state import COMPACTED, NUMBERED

NOBODY = "nobody"  # by whose certificate no more than a connection is to be had
GROUP = "audit-group"


@dataclass(frozen=True)
class User:
    name: str
    by_token: bool = False
    acls: tuple[str, ...] = ()
    """`write topic orders`; a name that ends with `*` is a prefix."""

    @property
    def user(self) -> str:
        """As quotas name it."""
        return self.name if self.by_token else f"CN={self.name}"

    @property
    def principal(self) -> str:
        return f"User:{self.user}"


WRITERS = (
    User("writer-0", acls=(f"write topic {NUMBERED}",)),
    User("writer-1", acls=("write topic numb*",)),
    User("writer-2", by_token=True, acls=(f"write topic {NUMBERED}",)),
)
AUDITOR = User("auditor", by_token=True, acls=("read topic numb*",))
KEEPER = User("keeper", acls=(f"write topic {COMPACTED}",))
MAKER = User("maker", acls=("all topic again*", "all topic once*"))
# Who are denied in turn.
ALICE = User("alice", acls=("write topic alices",))
BOB = User("bob", by_token=True, acls=("write topic bob*",))
CAROL = User("carol", acls=(f"read topic {NUMBERED}",))
DAVE = User("dave", by_token=True, acls=(f"read topic {NUMBERED}", "read group audit-*"))
GUESTS = (ALICE, BOB, CAROL, DAVE)
# Who are never allowed anything.
MALLORY = User("mallory")
TRUDY = User("trudy", by_token=True)
USERS = (*WRITERS, AUDITOR, KEEPER, MAKER, *GUESTS, MALLORY, TRUDY)


class Identities:
    """The files that clients show: certificates in the cluster's directory, tokens in one beside it."""

    def __init__(self, data: Path, security: Path) -> None:
        self._directory = data / "tokens"
        self._security = security
        self._lines: dict[str, list[str]] = {}  # of each user
        self.retired: list[str] = []
        """Tokens that count no more."""
        self._directory.mkdir(parents=True)
        for user in USERS:
            if user.by_token:
                self.show(user, self.add_token(user))
        self._write()

    @property
    def tokens_file(self) -> Path:
        """The brokers'."""
        return self._directory / "all"

    def add_token(self, user: User) -> str:
        """It counts beside those of before."""
        token, line = make_token(parse_principal(user.principal))
        self._lines.setdefault(user.name, []).append(line)
        self._write()
        return token

    def show(self, user: User, token: str) -> None:
        replace_file(self._directory / user.name, f"{token}\n".encode())

    def shown(self, user: User) -> str:
        return (self._directory / user.name).read_text().strip()

    def retire(self, user: User, token: str) -> None:
        token_id = token.partition(".")[0]
        self._lines[user.name] = [line for line in self._lines[user.name] if not line.startswith(token_id)]
        self._write()
        self.retired.append(token)

    def _write(self) -> None:
        lines = [line for of_user in self._lines.values() for line in of_user]
        replace_file(self.tokens_file, "".join(f"{line}\n" for line in lines).encode())

    def options(self, user: User) -> dict[str, Any]:
        """Of a client of the SDK."""
        return {
            **self.certificate(NOBODY if user.by_token else user.name),
            "client_id": f"soak-{user.name}",
            **({"token_file": self._directory / user.name} if user.by_token else {}),
        }

    def certificate(self, name: str) -> dict[str, Any]:
        return {
            "security_protocol": "SSL",
            "ssl_ca_file": self._security / "ca.pem",
            "ssl_certificate_file": self._security / f"{name}.pem",
            "ssl_key_file": self._security / f"{name}.key",
        }
