"""What flexc has to know of an array beside its memory: its type, its device, and how to make one like it."""
import functools
import sys

from . import errors

DTYPES = {"f64": 1, "f32": 2, "f16": 3, "bf16": 4, "i64": 5, "i32": 6, "i16": 7, "i8": 8, "u8": 9, "bool": 10,
          "e4m3": 11, "e5m2": 12}
_NAMES = {
    "float64": "f64", "double": "f64", "float32": "f32", "float": "f32", "float16": "f16", "half": "f16",
    "bfloat16": "bf16", "int64": "i64", "long": "i64", "int32": "i32", "int": "i32", "int16": "i16", "int8": "i8",
    "uint8": "u8", "bool": "bool", "bool_": "bool", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2",
}


def dtype_name(dtype):
    """'f32' of 'f32', 'float32', numpy.float32, torch.float32, jax.numpy.float32, ..."""
    if isinstance(dtype, str):
        text = dtype
    else:
        text = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    text = text.rsplit(".", 1)[-1]
    name = text if text in DTYPES else _NAMES.get(text)
    if name is None:
        raise errors.InvalidOption(f"there is no element type for {dtype!r}; flexc has {', '.join(DTYPES)}")
    return name


def library_of(array):
    """'numpy', 'torch', 'jax', ... : whose the array is."""
    return type(array).__module__.partition(".")[0]


def device_of(array):
    """('cpu', 0) or ('cuda', index)."""
    if library_of(array) == "numpy":
        return "cpu", 0
    kind, index = array.__dlpack_device__()
    if int(kind) in (1, 3):
        return "cpu", 0
    if int(kind) in (2, 13):
        return "cuda", int(index)
    raise errors.InvalidOption("arrays must be on the CPU or on a CUDA device")


def _make(function, like, shape, dtype):
    """An array of the same library and device as another, with this element type."""
    library = library_of(like)
    if library == "torch":
        torch = sys.modules["torch"]
        return getattr(torch, function)(shape, dtype=getattr(torch, _long_name(dtype)), device=like.device)
    if library == "numpy":
        import numpy
        return getattr(numpy, function)(shape,
                                        dtype=like.dtype if dtype == dtype_name(like.dtype) else _long_name(dtype))
    if library == "cupy":
        import cupy  # type: ignore[import-not-found]
        return getattr(cupy, function)(shape, dtype=_long_name(dtype))
    if library in ("jax", "jaxlib"):
        raise errors.InvalidOption("results cannot be written to JAX's arrays: flexc.jax.attention makes its own")
    raise errors.InvalidOption(f"flexc makes arrays of torch, NumPy and CuPy; give the results of {library} yourself")


empty, zeros = functools.partial(_make, "empty"), functools.partial(_make, "zeros")


def _long_name(dtype):
    return {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32",
            "i16": "int16", "i8": "int8", "u8": "uint8", "bool": "bool"}[dtype]


def visible(array):
    """What the module can read: PyTorch's tensors without their history, for versions whose DLPack asks for it."""
    if getattr(array, "requires_grad", False) and not hasattr(type(array), "__dlpack_c_exchange_api__"):
        return array.detach()
    return array
