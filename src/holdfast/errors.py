"""Every error that Holdfast raises, by name; `holdfast.core.errors` says what to do about each."""

from holdfast.core.errors import *  # noqa: F403
