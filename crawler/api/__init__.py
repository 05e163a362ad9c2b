"""The HTTP API: batches, Firecrawl's dialect and MCP, over one back end."""
