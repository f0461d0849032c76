"""The page of REST, made from the OpenAPI document that the server itself serves."""

from __future__ import annotations

from typing import Any

from scripts.docs.markdown import code, page, prose, table

from mintyard.api.openapi import document

_PREFIX = "#/components/schemas/"
_METHODS = ("get", "post", "patch")


def pages() -> dict[str, str]:
    made = document()
    operations: dict[str, list[tuple[str, str, dict[str, Any]]]] = {tag["name"]: [] for tag in made["tags"]}
    for path, methods in made["paths"].items():
        for method, operation in methods.items():
            operations[operation["tags"][0]].append((method.upper(), path, operation))
    parts = [
        made["info"]["description"],
        (
            "The hub serves this as OpenAPI 3.1 at `/api/v1/openapi.json`. Every operation may also answer with the problems "
            "that [errors](errors.md) lists for its status; each one's own are named below."
        ),
    ]
    for tag, listed in operations.items():
        rows = [
            (f"[`{method} {path}`](#{operation['operationId']})", operation["summary"])
            for method, path, operation in listed
        ]
        parts += [f"## {tag.capitalize()}", table(("operation", "what it does"), rows)]
        for method, path, operation in listed:
            parts += _operation(method, path, operation)
    parts.append("## Types")
    for name, schema in sorted(made["components"]["schemas"].items()):
        parts += [f"### {name}", prose(schema.get("description"))]
        if "properties" in schema:
            parts.append(_properties(schema))
        elif "enum" in schema:
            parts.append(", ".join(map(code, schema["enum"])))
    return {"rest.md": page("REST", *parts)}


def _operation(method: str, path: str, operation: dict[str, Any]) -> list[str]:
    parts = [f'### <a id="{operation["operationId"]}"></a>{method} {path}']
    parts.append(f"{operation['summary']}. {operation.get('description', '')}".strip())
    own = [p for p in operation["parameters"] if p["in"] != "header"]
    if own:
        rows = [(code(p["name"]), p["in"], _type(p["schema"]), p.get("description", "")) for p in own]
        parts.append(table(("parameter", "in", "type", "about"), rows))
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body:
        parts.append(f"Body: {_type(body)}.")
    answers: list[str] = []
    for status, answer in operation["responses"].items():
        if status.startswith("2"):
            kinds = [_type(c["schema"]) for c in answer.get("content", {}).values()]
            answers.append(f"Answer {status}: {' or '.join(kinds) or 'nothing'}.")
    problems = sorted(
        code
        for status, answer in operation["responses"].items()
        if not status.startswith("2")
        for content in answer["content"].values()
        for code in content.get("examples", {})
    )
    parts.append(" ".join(answers))
    parts.append("Problems: " + ", ".join(f"`{name}`" for name in problems) + ".")
    return parts


def _properties(schema: dict[str, Any]) -> str:
    required = set(schema.get("required", ()))
    rows = []
    for name, inner in schema["properties"].items():
        default = "required" if name in required else code(_default(inner))
        rows.append((code(name), _type(inner), default, inner.get("description", "")))
    return table(("field", "type", "default", "about"), rows)


def _default(schema: dict[str, Any]) -> str:
    if "default" not in schema:
        return ""
    value = schema["default"]
    return "null" if value is None else str(value) if value != "" else '""'


def _type(schema: dict[str, Any]) -> str:
    """A schema in few words, types of ours as links."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_PREFIX)
        return f"[{name}](#{name.lower()})"
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return " or ".join(_type(part) for part in schema[word])
    if "enum" in schema:
        return " or ".join(code(value) for value in schema["enum"])
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"map to {_type(schema['additionalProperties'])}"
    about = (
        ("minimum", "from {}"),
        ("maximum", "to {}"),
        ("maxLength", "up to {} characters"),
        ("format", "as {}"),
    )
    bounds = [words.format(schema[key]) for key, words in about if key in schema]
    return " ".join([kind, *bounds])
