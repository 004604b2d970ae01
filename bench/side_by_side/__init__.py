"""The same work in Holdfast, LangGraph, DBOS and the OpenAI Agents SDK: `make bench-peers`."""
