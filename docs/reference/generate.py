"""Makes the pages of this folder from the contracts in `proto/`: one for each file, with every comment in it.

`make reference` runs it. It reads the descriptor set that the build puts beside the stubs (`hatch_build.py`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
    ServiceDescriptorProto,
)

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
DESCRIPTORS = ROOT / "services" / "highwater" / "v1" / "descriptors.binpb"
GENERATED = "<!-- Generated from {source} by docs/reference/generate.py: change that, and run `make reference`. -->"

# Field numbers of descriptor.proto, by which source info names what a comment belongs to.
MESSAGES, ENUMS, SERVICES, SYNTAX = 4, 5, 6, 12  # of a file
FIELDS, ONEOFS = 2, 8  # of a message; the values of an enum and the methods of a service are 2 as well

Place = tuple[int, ...]
"""What a comment belongs to: `(4, 0, 2, 1)` is the second field of the file's first message."""

_SCALARS = {number: name.removeprefix("TYPE_").lower() for name, number in FieldDescriptorProto.Type.items()}


class Contract:
    """One proto file and its comments."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self.file = file
        self.name = Path(file.name).stem
        self.source = f"proto/{file.name}"
        self.comments: dict[Place, str] = {
            tuple(location.path): re.sub(r"^ ", "", location.leading_comments, flags=re.M).strip()
            for location in file.source_code_info.location
            if location.leading_comments
        }

    def places(self) -> Iterator[tuple[Place, str]]:
        """All that needs a comment of its own, and its name: the file, services, RPCs, messages, fields, oneofs, enums
        and their values."""
        yield (SYNTAX,), self.file.name
        for number, service in enumerate(self.file.service):
            yield (SERVICES, number), service.name
            for index, method in enumerate(service.method):
                yield (SERVICES, number, FIELDS, index), f"{service.name}.{method.name}"
        for number, message in enumerate(self.file.message_type):
            yield (MESSAGES, number), message.name
            for index, field in enumerate(message.field):
                yield (MESSAGES, number, FIELDS, index), f"{message.name}.{field.name}"
            for index in _choices(message):
                yield (MESSAGES, number, ONEOFS, index), f"{message.name}.{message.oneof_decl[index].name}"
        for number, enum in enumerate(self.file.enum_type):
            yield (ENUMS, number), enum.name
            for index, value in enumerate(enum.value):
                yield (ENUMS, number, FIELDS, index), f"{enum.name}.{value.name}"


def contracts() -> list[Contract]:
    """By file name. Raises `FileNotFoundError` where the stubs have not been made."""
    if not DESCRIPTORS.exists():
        raise FileNotFoundError(f"{DESCRIPTORS} is missing: have the build make the stubs anew (pip install -e .)")
    files = FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file
    return sorted(map(Contract, files), key=lambda contract: contract.source)


def pages() -> dict[str, str]:
    """The text of every page of this folder, by its name."""
    found = contracts()
    homes = {
        f".{contract.file.package}.{each.name}": contract.name
        for contract in found
        for each in (*contract.file.message_type, *contract.file.enum_type)
    }
    linked = _linking((ROOT / "docs" / "replication.md").read_text())
    made = {f"{contract.name}.md": _Page(contract, homes, linked).text() for contract in found}
    return {"README.md": _index(found), **made}


def _index(found: Sequence[Contract]) -> str:
    lines = [
        GENERATED.format(source="proto/"),
        "# The contracts",
        "Every RPC, message, field and value, with what the files in `proto/highwater/v1/` say of it.\n"
        "How they are used together is told in [protocol.md](../protocol.md).",
        "| page | services | |\n|---|---|---|\n"
        + "\n".join(
            f"| [{contract.name}]({contract.name}.md) | {', '.join(each.name for each in contract.file.service)} "
            f"| {_first_sentence(contract.comments[(SYNTAX,)])} |"
            for contract in found
        ),
    ]
    return "\n\n".join(lines) + "\n"


class _Page:
    def __init__(self, contract: Contract, homes: dict[str, str], linked: Callable[[str], str]) -> None:
        self._contract = contract
        self._homes = homes  # pages of messages and enums, by full name
        self._linked = linked

    def text(self) -> str:
        contract = self._contract
        parts = [
            GENERATED.format(source=contract.source),
            f"# {contract.name}.proto",
            self._comment((SYNTAX,)),
            f"The source: [{contract.source}](../../{contract.source}).",
            self._contents(),
        ]
        for number, service in enumerate(contract.file.service):
            parts += self._service((SERVICES, number), service)
        for number, message in enumerate(contract.file.message_type):
            parts += self._message((MESSAGES, number), message)
        for number, enum in enumerate(contract.file.enum_type):
            parts += self._enum((ENUMS, number), enum)
        return "\n\n".join(part for part in parts if part) + "\n"

    def _contents(self) -> str:
        file = self._contract.file
        lines = []
        for service in file.service:
            lines.append(
                f"- service {_anchored(service.name)}: {', '.join(_anchored(rpc.name) for rpc in service.method)}"
            )
        if file.message_type:
            lines.append(f"- messages: {', '.join(_anchored(message.name) for message in file.message_type)}")
        if file.enum_type:
            lines.append(f"- enums: {', '.join(_anchored(enum.name) for enum in file.enum_type)}")
        return "\n".join(lines)

    def _service(self, place: Place, service: ServiceDescriptorProto) -> Iterator[str]:
        yield f"## {service.name}"
        yield f"Service `{self._contract.file.package}.{service.name}`."
        yield self._comment(place)
        for index, method in enumerate(service.method):
            yield f"### {method.name}"
            yield self._signature(method)
            yield self._comment((*place, FIELDS, index))

    def _signature(self, method: MethodDescriptorProto) -> str:
        taken = ("stream of " if method.client_streaming else "") + self._link(method.input_type)
        given = ("stream of " if method.server_streaming else "") + self._link(method.output_type)
        return f"{taken} → {given}"

    def _message(self, place: Place, message: DescriptorProto) -> Iterator[str]:
        yield f"## {message.name}"
        yield self._comment(place)
        for index in _choices(message):
            members = [
                f"`{field.name}`"
                for field in message.field
                if field.HasField("oneof_index") and field.oneof_index == index
            ]
            choice = message.oneof_decl[index].name
            yield f"One of {', '.join(members)} is `{choice}`: {self._comment((*place, ONEOFS, index))}"
        if message.field:
            rows = []
            for index, field in enumerate(message.field):
                comment = self._cell((*place, FIELDS, index))
                rows.append(f"| `{field.name}` | {field.number} | {self._type(message, field)} | {comment} |")
            yield "\n".join(["| field | number | type | |", "|---|---|---|---|", *rows])

    def _enum(self, place: Place, enum: EnumDescriptorProto) -> Iterator[str]:
        yield f"## {enum.name}"
        yield self._comment(place)
        rows = [
            f"| `{value.name}` | {value.number} | {self._cell((*place, FIELDS, index))} |"
            for index, value in enumerate(enum.value)
        ]
        yield "\n".join(["| value | number | |", "|---|---|---|", *rows])

    def _type(self, message: DescriptorProto, field: FieldDescriptorProto) -> str:
        for nested in message.nested_type:  # the entries of a map
            if nested.options.map_entry and field.type_name.endswith(f".{message.name}.{nested.name}"):
                key, value = nested.field
                return f"map of {self._type(nested, key)} to {self._type(nested, value)}"
        named = self._link(field.type_name) if field.type_name else _SCALARS[field.type]
        if field.label == FieldDescriptorProto.LABEL_REPEATED:
            return f"repeated {named}"
        return f"optional {named}" if field.proto3_optional else named

    def _link(self, full_name: str) -> str:
        name, home = full_name.rpartition(".")[2], self._homes[full_name]
        return f"[{name}]({'' if home == self._contract.name else home + '.md'}#{name.lower()})"

    def _comment(self, place: Place) -> str:
        return self._linked(self._contract.comments.get(place, ""))

    def _cell(self, place: Place) -> str:
        paragraphs = re.split(r"\n\n", self._comment(place))
        return "<br>".join(" ".join(paragraph.split()) for paragraph in paragraphs).replace("|", "\\|")


def _choices(message: DescriptorProto) -> list[int]:
    """The oneofs that are written as such: an optional field is one by itself."""
    optional = {field.oneof_index for field in message.field if field.proto3_optional}
    return [index for index in range(len(message.oneof_decl)) if index not in optional]


def _anchored(name: str) -> str:
    return f"[{name}](#{name.lower()})"


def _first_sentence(text: str) -> str:
    return " ".join(re.split(r"(?<=[.:]) |\n\n", text, maxsplit=1)[0].split()).rstrip(":.")


def _linking(replication: str) -> Callable[[str], str]:
    """Makes links of what comments cite: of `RULES 4.1` to its section of docs/replication.md, and of other pages."""
    sections = {
        number: re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        for title, number in re.findall(r"^## ((\d+)\. .+)$", replication, re.M)
    }

    def linked(text: str) -> str:
        text = re.sub(r"docs/(\w+\.md)", r"[\1](../\1)", text)
        return re.sub(
            r"RULES\s(\d+)\.(\d+)((?:, \d+\.\d+)*)",
            lambda found: f"[RULES {found[1]}.{found[2]}{found[3]}](../replication.md#{sections[found[1]]})",
            text,
        )

    return linked


def main() -> None:
    made = pages()
    for stale in FOLDER.glob("*.md"):
        if stale.name not in made:
            stale.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
