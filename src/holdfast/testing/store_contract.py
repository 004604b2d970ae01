"""The contract of every session store, as a pytest suite to run over your own.

    class TestMyStore(StoreContract):
        async def open_store(self, path):
            return await MySessionStore.open(path)

Opening the same path again must show the same data; two handles open at once must see each other
as two processes do. A store that `holdfast.stores.choose.open_store` cannot open by its URL also
overrides `die_holding`. Needs the `testing` extra.
"""

from __future__ import annotations

from holdfast.testing.contract.appends import AppendContract
from holdfast.testing.contract.asking import InboxContract, LeaseContract
from holdfast.testing.contract.audit import AuditContract
from holdfast.testing.contract.care import DeleteContract, EraseContract
from holdfast.testing.contract.collecting import GcContract
from holdfast.testing.contract.copies import CopyContract
from holdfast.testing.contract.hostile import HOSTILE_IDS, HostileContract
from holdfast.testing.contract.live import LiveContract
from holdfast.testing.contract.payloads import PayloadContract
from holdfast.testing.contract.place import ContractPlace, Place
from holdfast.testing.contract.reads import ReadContract
from holdfast.testing.contract.tenants import TenantContract
from holdfast.testing.contract.waits import PostsContract, WaitsContract, WorkContract

__all__ = ["HOSTILE_IDS", "ContractPlace", "Place", "StoreContract"]


class StoreContract(
    AppendContract,
    PayloadContract,
    ReadContract,
    LeaseContract,
    InboxContract,
    WaitsContract,
    WorkContract,
    PostsContract,
    LiveContract,
    TenantContract,
    DeleteContract,
    EraseContract,
    GcContract,
    AuditContract,
    CopyContract,
    HostileContract,
):
    """Every rule of `holdfast.stores.port.SessionStore`."""
