"""The chapters of the store contract, which `holdfast.testing.store_contract` binds into one."""
