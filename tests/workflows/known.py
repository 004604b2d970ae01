"""What the workflows of these tests may name."""

from holdfast.workflows.known import Known, Signature
from holdfast.workflows.schemas import INTEGER, STRING, Field, ListOf, ObjectOf

KNOWN = Known(
    agents={"writer", "critic", "reviewer", "editor"},
    models={"scripted"},
    secrets={"search_key"},
    tools={
        "search": Signature(
            ObjectOf(
                {
                    "query": Field(STRING),
                    "limit": Field(INTEGER, required=False),
                    "key": Field(STRING, required=False),
                }
            ),
            ListOf(STRING),
        ),
        "save": Signature(),
    },
    functions={"tally": Signature()},
    workflows={"essay": Signature()},
)
