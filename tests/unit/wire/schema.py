"""Values drawn from msgspec's own reading of a type: so that a test covers a field the day it is added."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect


def struct(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Any value of the struct within the bounds that its annotations set."""
    return _of(inspect.type_info(kind))


def _of(found: inspect.Type) -> st.SearchStrategy[Any]:
    match found:
        case inspect.StructType():
            return st.builds(found.cls, *(_of(field.type) for field in found.fields))
        case inspect.IntType():
            return st.integers(-(2**63) if found.ge is None else found.ge, 2**64 - 1 if found.le is None else found.le)
        case inspect.StrType():
            return st.text(max_size=20)
        case inspect.BoolType():
            return st.booleans()
        case inspect.LiteralType():
            return st.sampled_from(found.values)
        case inspect.VarTupleType():
            return st.lists(_of(found.item_type), max_size=4).map(tuple)
        case inspect.DictType():
            return st.dictionaries(_of(found.key_type), _of(found.value_type), max_size=4)
        case inspect.UnionType():
            return st.one_of([_of(one) for one in found.types])
        case _:
            raise NotImplementedError(f"no way to draw a {found}")
