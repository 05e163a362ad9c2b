"""The MCP server: the tools of `mcp_tools` over stdio and over HTTP.

It loads no FastAPI, so that a client that starts it over stdio does not wait for that.
"""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from crawler import __version__
from crawler.api.backend import LedgerBackend
from crawler.api.mcp_tools import INSTRUCTIONS, TOOLS, Caller, Tool, Tools
from crawler.arguments import checked
from crawler.config import Settings
from crawler.errors import CrawlerError, StoreError, UsageError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

try:
    import mcp_types as types
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel.server import Server
    from mcp.server.stdio import stdio_server
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from mcp.shared.exceptions import MCPError
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types"):
        raise
    raise UsageError(
        "MCP needs the package mcp, which is not installed: "
        "pip install '.[mcp]' in the project's folder"
    ) from None

log = logging.getLogger(__name__)

IN_LOG = "the log of this server has the details"
MAX_BODY = 10_000_000
"""Bytes of a request: 10,000 URLs fit."""

Context = ServerRequestContext[Any, Any]


def make_server(tools: Tools, caller_of: Callable[[Context], Caller]) -> Server[Any]:
    """Return the protocol's side of the tools; `caller_of` finds out who calls."""
    by_name = {tool.name: tool for tool in TOOLS}
    listed = types.ListToolsResult(tools=[_described(tool) for tool in TOOLS])
    schemas = {tool.name: tool.input_schema for tool in listed.tools}

    async def list_tools(
        context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return listed

    async def call_tool(
        context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        tool = by_name.get(params.name)
        if tool is None:
            known = f"there are {', '.join(by_name)}"
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name[:100]!r}; {known}")
        return await _called(tools, tool, caller_of(context), params.arguments or {})

    return Server(
        "crawler",
        version=__version__,
        title="crawler",
        instructions=INSTRUCTIONS,
        get_tool_input_schema=schemas.get,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def _called(
    tools: Tools, tool: Tool, caller: Caller, given: dict[str, Any]
) -> types.CallToolResult:
    """Run a tool. What goes wrong is an answer that a model can read and act on."""
    try:
        answer = await tool.run(tools, caller, checked(given, tool.arguments, "arguments"))
    except StoreError as error:
        log.error("the store cannot be used: %s", error)  # noqa: TRY400 - the message says it all
        return _failure(f"{tool.name}: the store cannot be used; {IN_LOG}")
    except CrawlerError as error:
        return _failure(f"{tool.name}: {error}")
    except Exception:
        log.exception("the tool %s failed", tool.name)
        return _failure(f"{tool.name}: an internal error; {IN_LOG}")
    text = msgspec.json.encode(answer).decode()
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)],
        structured_content=msgspec.to_builtins(answer),
    )


def _failure(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)


def _described(tool: Tool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=_schema(tool.arguments),
        output_schema=_schema(tool.answer),
        annotations=types.ToolAnnotations(
            read_only_hint=tool.reads_only,
            destructive_hint=False,
            idempotent_hint=tool.reads_only,
            open_world_hint=not tool.reads_only,
        ),
    )


def _schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON schema of a struct, with an object at its root as the protocol wants it."""
    _, parts = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    root: dict[str, Any] = parts.pop(kind.__name__)
    del root["title"]
    if parts:
        root["$defs"] = parts
    return root


# stdio


def serve_stdio(settings: Settings) -> None:
    """Serve one client over stdin and stdout, until stdin ends; leave no process behind."""
    backend = LedgerBackend(settings)
    tools = Tools(settings, backend)
    caller = Caller("", partial(backend.submit, ""))
    backend.start()
    try:
        asyncio.run(_serve_stdio(backend, make_server(tools, lambda context: caller)))
    except* BrokenPipeError:
        pass  # the client is gone
    finally:
        tools.close()
        backend.stop()


async def _serve_stdio(backend: LedgerBackend, server: Server[Any]) -> None:
    def end(number: int) -> NoReturn:
        # A thread waits for stdin, and nothing interrupts that but the end of this process.
        backend.stop()
        os._exit(128 + number)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end, number)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


# HTTP


class HttpTransport:
    """The streamable HTTP transport, as an ASGI application.

    Each request stands for itself: no session is kept for a client, and one that comes after a
    restart of the server is served like any other.
    """

    def __init__(
        self, settings: Settings, backend: LedgerBackend, caller_of: Callable[[Any], Caller]
    ) -> None:
        """`caller_of` finds out who has sent a Starlette request."""
        self._tools = Tools(settings, backend)
        server = make_server(self._tools, lambda context: caller_of(context.request))
        self._manager = StreamableHTTPSessionManager(
            server, stateless=True, max_request_body_size=MAX_BODY
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve within the lifespan of the application."""
        try:
            async with self._manager.run():
                yield
        finally:
            self._tools.close()

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Serve a request."""
        await self._manager.handle_request(scope, receive, send)
