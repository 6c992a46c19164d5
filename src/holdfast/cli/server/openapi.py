"""The description of the REST API: OpenAPI 3.1, from the table of endpoints and the types of answers."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import msgspec

from holdfast.cli.server.answers import Errors

_PATH_PARAMETERS = {
    "job": "name of the job, as in `/jobs`",
    "id": "id of a retained checkpoint",
    "operator": "uid of the operator",
    "state": "name of the state",
}

_ERRORS = {
    "400": "the request is not valid",
    "401": "the token is missing",
    "404": "there is no such job, checkpoint, operator or state",
    "500": "stored data is damaged",
    "503": "the store does not answer",
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A path of the API.

    Attributes:
        path: The path, with names of parameters in braces.
        summary: Summary of the answer.
        answer: Type of the answer.
        read: Returns the answer: called with the parameters of the path and the query.
        query: Parameters of the query, with descriptions.
    """

    path: str
    summary: str
    answer: type
    read: Callable[..., Any]
    query: Mapping[str, str] = field(default_factory=dict)


def description(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Return the document."""
    answers = [Errors, *(endpoint.answer for endpoint in endpoints)]
    schemas, components = msgspec.json.schema_components(
        answers, ref_template="#/components/schemas/{name}"
    )
    errors, *schemas_of = schemas
    paths: dict[str, Any] = {
        endpoint.path: {"get": _operation(endpoint, schema, errors)}
        for endpoint, schema in zip(endpoints, schemas_of, strict=True)
    }
    paths["/events"] = {
        "get": {
            "operationId": "events",
            "summary": "Server-sent events: `change` when a job changed, `checkpoint` when a checkpoint was completed, "
            "`failure` when an attempt failed. Data: the job's name, and its newest checkpoint",
            "responses": {"200": _response("events", "text/event-stream", {"type": "string"})},
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": version("holdfast"),
            "description": "Checkpoints of streaming queries, read from storage. All requests only read.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(endpoint: Endpoint, schema: Any, errors: Any) -> dict[str, Any]:
    names = re.findall(r"{(\w+)}", endpoint.path)
    parameters = [
        *(_parameter(name, "path", _PATH_PARAMETERS[name]) for name in names),
        *(_parameter(name, "query", text) for name, text in endpoint.query.items()),
    ]
    words = re.findall(r"\w+", endpoint.path.replace("{", "by_"))
    failures = {
        status: _response(text, "application/json", errors) for status, text in _ERRORS.items()
    }
    return {
        "operationId": "_".join(words) or "root",
        "summary": endpoint.summary,
        "parameters": parameters,
        "responses": {"200": _response("the answer", "application/json", schema), **failures},
    }


def _parameter(name: str, place: str, text: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": place,
        "required": place == "path",
        "description": text,
        "schema": {"type": "string"},
    }


def _response(text: str, content_type: str, schema: Any) -> dict[str, Any]:
    return {"description": text, "content": {content_type: {"schema": schema}}}
