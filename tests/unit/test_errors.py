"""The exception tree and what each exception carries."""

from __future__ import annotations

import inspect

import pytest

from pyllama_turbo import errors


def test_every_error_is_in_the_docstring_tree_and_exported() -> None:
    classes = {n for n, c in vars(errors).items() if inspect.isclass(c) and issubclass(c, errors.TurboError)}
    assert classes == set(errors.__all__)
    for name in classes:
        assert name in (errors.__doc__ or ""), name


def test_facts_travel_as_attributes() -> None:
    error = errors.MemoryLimitError("too big", asked=10, limit=5, hint="use less", native_log=("line",))
    assert (error.asked, error.limit, error.hint, error.native_log) == (10, 5, "use less", ("line",))
    assert str(error) == "too big (use less)"
    assert isinstance(error, MemoryError)


@pytest.mark.parametrize(
    ("ours", "builtin"),
    [
        (errors.OptionError, ValueError),
        (errors.UnknownOptionError, TypeError),
        (errors.NativeLibraryError, ImportError),
    ],
)
def test_errors_can_be_caught_as_the_builtin_kind(ours: type[errors.TurboError], builtin: type[Exception]) -> None:
    with pytest.raises(builtin):
        raise ours("no")
