"""Tenants: whose sessions a handle addresses.

Session ids are unique for each tenant. A handle is opened for the tenant `default` and may list all
tenants on request; `of` makes a view of the same store that knows one tenant only, to which a
session of another looks like one that does not exist.
"""

from __future__ import annotations

import copy
from typing import NamedTuple, TypeVar

from holdfast.core.errors import InvalidInput
from holdfast.core.ids import check_id

DEFAULT_TENANT = "default"
ALL_TENANTS = "*"
"""What a filter names to list the sessions of every tenant."""

Handle = TypeVar("Handle", bound="TenantHandle")


class Address(NamedTuple):
    """A session across tenants."""

    tenant: str
    id: str

    @property
    def key(self) -> str:
        """Return one text for both; the sign between them occurs in neither."""
        return self.id if self.tenant == DEFAULT_TENANT else f"{self.tenant}/{self.id}"


def address_of(key: str) -> Address:
    """Return the address that a key stands for."""
    tenant, slash, session_id = key.rpartition("/")
    return Address(tenant if slash else DEFAULT_TENANT, session_id)


class TenantHandle:
    """What every store does about tenants."""

    tenant: str = DEFAULT_TENANT
    """Whose sessions this handle addresses."""
    is_view: bool = False
    """Whether this is a view, which knows its own tenant only and closes nothing."""

    def of(self: Handle, tenant: str) -> Handle:
        """Return a view of this store for one tenant."""
        check_id(tenant, "tenant")
        if self.is_view and tenant != self.tenant:
            raise InvalidInput(
                f"this is a view of tenant {self.tenant!r}; take one of tenant {tenant!r} from the "
                "store that was opened"
            )
        view = copy.copy(self)
        view.tenant, view.is_view = tenant, True
        return view

    def check_tenant(self, tenant: str) -> None:
        """Refuse to store a session of another tenant."""
        if tenant != self.tenant:
            raise InvalidInput(
                f"a session of tenant {tenant!r} cannot be stored by a handle of tenant "
                f"{self.tenant!r}; use store.of({tenant!r})"
            )

    def scope(self, wanted: str | None) -> str | None:
        """Return the tenant that a listing is of, None for all, empty for one without sessions."""
        if wanted is None or wanted == self.tenant:
            return self.tenant
        if self.is_view:
            return ""  # others look as if they had none
        return None if wanted == ALL_TENANTS else wanted
