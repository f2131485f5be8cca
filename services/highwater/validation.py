"""Tells what is wrong with a value that pydantic refuses, in the words of whoever gave it: settings, files, command
lines.

pydantic itself is not imported: whoever has an error of it has it loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


def problem(error: ErrorDetails) -> str:
    """The end of a sentence that begins with the value's name: `'one' is no whole number`."""
    given, bounds = error["input"], error.get("ctx", {})
    match error["type"]:
        case "missing":
            return "it is required"
        case "extra_forbidden":
            return "there is no such key"
        case "int_parsing" | "int_type" | "int_from_float" | "int_parsing_size":
            return f"{given!r} is no whole number"
        case "float_parsing" | "float_type" | "finite_number":
            return f"{given!r} is no number"
        case "bool_parsing" | "bool_type":
            return f"{given!r} is neither true nor false"
        case "string_type":
            return f"{given!r} is no text"
        case "string_too_short":
            return "it is empty"
        case "list_type":
            return "it is no list"
        case "dict_type" | "mapping_type" | "model_type":
            return "it is no object"
        case "json_invalid":
            return f"it is no JSON: {bounds['error']}"
        case "greater_than_equal":
            return f"{given} is too small: it is {bounds['ge']} or more"
        case "less_than_equal":
            return f"{given} is too large: it is {bounds['le']} or less"
        case "greater_than":
            return f"{given} is too small: it is more than {bounds['gt']}"
        case "less_than":
            return f"{given} is too large: it is less than {bounds['lt']}"
        case "literal_error" | "enum":
            return f"{given!r} is none of {bounds['expected']}"
        case "value_error" | "assertion_error":
            return str(bounds["error"])
    return error["msg"]
