"""A LangGraph chat whose thread is kept by Holdfast: what was said is stored once, and verifies."""

import asyncio
import sys

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph

import holdfast
from holdfast.adapters.langgraph import HoldfastSaver


def reply(state: MessagesState) -> dict[str, list[AIMessage]]:
    return {"messages": [AIMessage(f"heard {len(state['messages'])} messages")]}


async def main(store: str) -> None:
    graph = StateGraph(MessagesState)
    graph.add_node("reply", reply)
    graph.add_edge(START, "reply")
    where: RunnableConfig = {"configurable": {"thread_id": "user-7"}}
    for text in ("hello", "again"):  # each with a saver of its own, as after a restart
        async with HoldfastSaver.open(store) as saver:
            chat = graph.compile(checkpointer=saver)
            state = await chat.ainvoke(MessagesState(messages=[HumanMessage(text)]), where)
            print(state["messages"][-1].content)
    async with holdfast.open(store) as runtime:
        print((await holdfast.verify(runtime.store, "langgraph.user-7")).ok)


asyncio.run(main(sys.argv[1]))
