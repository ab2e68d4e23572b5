"""OpenEnv's own tool client against a server: run by an interpreter that has the `openenv` package.

python tools_script.py URL
"""

import asyncio
import json
import sys

from openenv.core.env_server import CallToolAction
from openenv.core.mcp_client import MCPToolClient


async def main() -> None:
    async with MCPToolClient(base_url=sys.argv[1]) as client:
        await client.reset()
        tools = await client.list_tools()
        called = [await client.call_tool("add", by=by) for by in (2, 3)]
        result = await client.step(CallToolAction(tool_name="add", arguments={"by": 0}))
        report = {
            "tools": [tool.name for tool in tools],
            "schema": tools[0].input_schema,
            "called": called,
            "count": result.observation.result["data"],
        }
        print(json.dumps(report))


asyncio.run(main())
