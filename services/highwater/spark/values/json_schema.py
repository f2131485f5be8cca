"""JSON Schema as a declared struct. Pure.

What says which types there are is understood: `type`, `properties`, `required`, `items`, `enum`, `const`, `format`,
`contentEncoding`, `additionalProperties` of maps, local `$ref`s, and alternatives of which one is null. What only
narrows values (`minimum`, `pattern` …) is not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from highwater.spark.errors import OptionError
from highwater.spark.values.schema_types import TIMESTAMP, list_of, with_allowed

_SIMPLE = {"string": pa.utf8(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_FORMATS = {
    ("string", "date-time"): TIMESTAMP,
    ("string", "date"): pa.date32(),
    ("integer", "int32"): pa.int32(),
    ("number", "float"): pa.float32(),
}
_ALTERNATIVES = ("anyOf", "oneOf", "allOf")


def parse_json_schema(schema: Any) -> pa.StructType:
    """Raises `OptionError`."""
    found = _Schema(schema).field("", schema, ())
    if not pa.types.is_struct(found.type):
        raise OptionError("the JSON Schema is not of an object with properties: a value is a struct of fields")
    return found.type


class _Schema:
    def __init__(self, root: Any) -> None:
        self._root = root

    def field(self, path: str, schema: Any, refs: tuple[str, ...]) -> pa.Field:
        """Nullable where the value may be null."""
        where = f"field {path} of the JSON Schema" if path else "the JSON Schema"
        if not isinstance(schema, dict):
            raise OptionError(f"{where} says nothing of its type: give it one")
        name = path.rpartition(".")[2]
        if (ref := schema.get("$ref")) is not None:
            if ref in refs:
                raise OptionError(f"{where} contains itself ({ref}): a column has a type of a fixed depth")
            return self.field(path, self._referred(where, ref), (*refs, ref))
        for word in _ALTERNATIVES:
            if word in schema:
                return self._alternative(path, where, schema[word], refs)
        kinds, nullable = _kinds(schema)
        if len(kinds) != 1:
            said = " or ".join(map(str, kinds)) or "nothing"
            raise OptionError(f"{where} is of type {said}: a column has one type (and null)")
        field = pa.field(name, self._type(path, where, kinds[0], schema, refs), nullable=nullable)
        allowed = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if allowed is None:
            return field
        if kinds[0] not in ("string", "integer"):
            raise OptionError(f"{where} is an enum of {kinds[0]}: string and integer can be one")
        return with_allowed(field, [one for one in allowed if one is not None])

    def _type(self, path: str, where: str, kind: str, schema: Mapping[str, Any], refs: tuple[str, ...]) -> pa.DataType:
        if kind == "object":
            return self._object(path, where, schema, refs)
        if kind == "array":
            return list_of(self.field(f"{path}[]", schema.get("items"), refs))
        if kind == "string" and schema.get("contentEncoding") == "base64":
            return pa.binary()
        if kind not in _SIMPLE:
            raise OptionError(f"{where} is of type {kind}: there are {', '.join((*_SIMPLE, 'array', 'object'))}")
        return _FORMATS.get((kind, schema.get("format", "")), _SIMPLE[kind])

    def _object(self, path: str, where: str, schema: Mapping[str, Any], refs: tuple[str, ...]) -> pa.DataType:
        properties = schema.get("properties")
        if properties:
            required = schema.get("required", ())
            fields = []
            for name, one in properties.items():
                found = self.field(f"{path}.{name}" if path else name, one, refs).with_name(name)
                fields.append(found.with_nullable(found.nullable or name not in required))
            return pa.struct(fields)
        if isinstance(others := schema.get("additionalProperties"), dict):
            return pa.map_(pa.utf8(), self.field(f"{path}[]", others, refs).with_name("value"))
        raise OptionError(f"{where} is an object without properties: name them, or say additionalProperties")

    def _alternative(self, path: str, where: str, alternatives: Any, refs: tuple[str, ...]) -> pa.Field:
        others = [one for one in alternatives if not (isinstance(one, dict) and one.get("type") == "null")]
        if len(others) != 1:
            raise OptionError(f"{where} may be of {len(others)} types: a column has one type (and null)")
        field = self.field(path, others[0], refs)
        return field.with_nullable(field.nullable or len(others) < len(alternatives))

    def _referred(self, where: str, ref: Any) -> Any:
        found = self._root
        if not isinstance(ref, str) or not ref.startswith("#"):
            raise OptionError(f"{where} refers to {ref}: only what is in the same schema can be referred to (#/…)")
        for part in ref.removeprefix("#").split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or key not in found:
                raise OptionError(f"{where} refers to {ref}, which is not in the schema")
            found = found[key]
        return found


def _kinds(schema: Mapping[str, Any]) -> tuple[list[str], bool]:
    """The types but for null, and whether null is one."""
    said = schema.get("type")
    kinds = [said] if isinstance(said, str) else list(said or ())
    if not kinds:
        if "properties" in schema:
            kinds = ["object"]
        else:
            values = schema.get("enum", [schema["const"]] if "const" in schema else [])
            names = {str: "string", int: "integer", type(None): "null"}
            kinds = list(dict.fromkeys(names.get(type(one), type(one).__name__) for one in values))
    nullable = "null" in kinds or schema.get("nullable") is True
    return [kind for kind in kinds if kind != "null"], nullable
