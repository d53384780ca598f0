"""How dense, ragged and paged tensors lie, and what sizes their shapes say."""
from . import errors

LAYOUTS = {"dense": 0, "ragged": 1, "paged": 2}
QUERY_STARTS = {"auto": 0, "zero": 1, "end": 2}
_QUERIES = {"dense": ("B", "H", "Q_LEN"), "ragged": ("TOTAL_Q", "H")}
_KEYS = {"dense": ("B", "H_KV", "KV_LEN"), "ragged": ("TOTAL_K", "H_KV"), "paged": ("PAGES", "PAGE_SIZE", "H_KV")}


def _by_name(name, array, dims):
    shape = tuple(array.shape)
    if len(shape) != len(dims):
        raise errors.InvalidOption(f"{name} has {len(dims)} dims, [{', '.join(dims)}], not the shape {shape}")
    return dict(zip(dims, shape))


def sizes_of(q, k, v, query_layout, key_layout):
    """{'B': 2, 'H': 8, ...} of tensors of these layouts."""
    keys = _KEYS[key_layout]
    _by_name("v", v, (*keys, "DV"))
    return {**_by_name("k", k, (*keys, "D")), **_by_name("q", q, (*_QUERIES[query_layout], "D"))}


def agreed(name, given, known):
    """A size that tensors say, and that an argument may say too."""
    if given is not None and given != known:
        raise errors.InvalidOption(f"{name} is {given}; " + (
            "the layouts have none" if known is None else f"the tensors have {known}"))
    return known


def most(name, given, known):
    """Of one request: what tensors say, else what is given, else -1 for what the lengths say."""
    if known is None:
        return -1 if given is None else given
    return agreed(name, given, known)
