"""XLA's side of its foreign functions, for flexc's handlers on a GPU that is not there: `run` starts this as a process
of its own, in which a library that writes down launches stands in for the driver and NVRTC."""
import ctypes
import json
import os
import pathlib
import subprocess
import sys
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint32, c_void_p

RECORDER = pathlib.Path(__file__).resolve().parents[2] / "build/release/bin/flexc_recording_cuda.so"
TYPES = {"bool": 1, "i32": 4, "f16": 10, "f32": 11, "f64": 12, "bf16": 16}
EXECUTE, EXTENSION_OF_METADATA = 3, 1
MEMORY = 0x7000_0000_0010  # that XLA gives, aligned no better than it promises


def run(*calls, arch=90):
    """What each of these calls gives: its error, what was recorded, and the memory that XLA gave and took back."""
    environment = {**os.environ, "FLEXC_LIBCUDA": str(RECORDER), "FLEXC_NVRTC": str(RECORDER),
                   "FLEXC_RECORDED_ARCH": str(arch)}
    done = subprocess.run([sys.executable, __file__], input=json.dumps(calls), env=environment, capture_output=True,
                          text=True, check=True)
    return json.loads(done.stdout)


def struct(name, *fields):
    """Each of XLA's structs begins with its size and its extensions."""
    return type(name, (Structure,), {"_fields_": [("size", c_size_t), ("extensions", c_void_p), *fields]})


Extension = type("Extension", (Structure,), {"_fields_": [("size", c_size_t), ("type", c_int32), ("next", c_void_p),
                                                          ("metadata", c_void_p)]})
Version = struct("Version", ("major", ctypes.c_int), ("minor", ctypes.c_int))
Metadata = type("Metadata", (Structure,), {"_fields_": [("size", c_size_t), ("version", Version),
                                                        ("traits", c_uint32)]})
Buffer = struct("Buffer", ("dtype", c_int32), ("data", c_void_p), ("rank", c_int64), ("dims", POINTER(c_int64)))
Values = struct("Values", ("count", c_int64), ("types", POINTER(c_int32)), ("values", POINTER(c_void_p)))
Attributes = struct("Attributes", ("count", c_int64), ("types", POINTER(c_int32)), ("names", POINTER(c_void_p)),
                    ("values", POINTER(c_void_p)))
Text = type("Text", (Structure,), {"_fields_": [("data", c_char_p), ("size", c_size_t)]})
Scalar = type("Scalar", (Structure,), {"_fields_": [("dtype", c_int32), ("value", c_void_p)]})
ErrorArguments = struct("ErrorArguments", ("message", c_char_p), ("code", c_int32))
ErrorText = struct("ErrorText", ("error", c_void_p), ("message", c_char_p))
ErrorDestroy = struct("ErrorDestroy", ("error", c_void_p))
StreamGet = struct("StreamGet", ("context", c_void_p), ("stream", c_void_p))
Allocate = struct("Allocate", ("context", c_void_p), ("bytes", c_size_t), ("alignment", c_size_t), ("data", c_void_p))
Free = struct("Free", ("context", c_void_p), ("bytes", c_size_t), ("data", c_void_p))
Ordinal = struct("Ordinal", ("context", c_void_p), ("ordinal", c_int32))
NAMES = ("create_error", "error_text", "destroy_error", "register", "stream", "type", "context", "set_state",
         "get_state", "allocate", "free", "schedule", "threads", "future", "available", "failed", "run_id", "ordinal")
Api = struct("Api", ("version", Version), ("internal", c_void_p), *((name, c_void_p) for name in NAMES))
Call = struct("Call", ("api", c_void_p), ("context", c_void_p), ("stage", c_int32), ("arguments", Values),
              ("results", Values), ("attributes", Attributes))


class Xla:
    """Errors are numbers from 1, of texts."""

    def __init__(self):
        self.errors, self.memory, self.kept, self.given = [], [], [], {}
        self.api = Api(size=ctypes.sizeof(Api), version=Version(ctypes.sizeof(Version), None, 0, 3))
        for name, arguments in (("create_error", ErrorArguments), ("error_text", ErrorText),
                                ("destroy_error", ErrorDestroy), ("stream", StreamGet), ("allocate", Allocate),
                                ("free", Free), ("ordinal", Ordinal)):
            function = ctypes.CFUNCTYPE(c_void_p, POINTER(arguments))(getattr(self, name))
            self.kept.append(function)
            setattr(self.api, name, ctypes.cast(function, c_void_p))

    def error(self, text):
        self.errors.append(text)
        return len(self.errors)

    def create_error(self, given):
        return self.error(given.contents.message.decode())

    def error_text(self, given):
        given.contents.message = self.errors[given.contents.error - 1].encode()

    def destroy_error(self, given):
        self.memory.append(["destroyed", given.contents.error])

    def stream(self, given):
        given.contents.stream = self.given["stream"]

    def ordinal(self, given):
        given.contents.ordinal = self.given.get("device", 0)

    def allocate(self, given):
        if self.given.get("has_no_memory"):
            return self.error("RESOURCE_EXHAUSTED: there is no memory")
        assert given.contents.alignment <= 16
        given.contents.data = MEMORY
        self.memory.append(["taken", given.contents.bytes])

    def free(self, given):
        assert given.contents.data == MEMORY
        self.memory.append(["given back", given.contents.bytes])

    def keep(self, thing):
        self.kept.append(thing)
        return ctypes.addressof(thing)

    def values(self, buffers):
        addresses = [self.keep(Buffer(size=ctypes.sizeof(Buffer), dtype=TYPES[dtype], data=data, rank=len(shape),
                                      dims=(c_int64 * len(shape))(*shape))) for dtype, shape, data in buffers]
        return Values(ctypes.sizeof(Values), None, len(buffers), (c_int32 * len(buffers))(*[1] * len(buffers)),
                      (c_void_p * len(buffers))(*addresses))

    def attributes(self, given):
        types, values = [], []
        for _, value in given:
            if isinstance(value, str):
                text = value.encode()
                types.append(4)
                values.append(self.keep(Text(text, len(text))))
            else:
                types.append(3)
                values.append(self.keep(Scalar(TYPES["f64"], self.keep(c_double(value)))))
        names = [self.keep(Text(name.encode(), len(name))) for name, _ in given]
        return Attributes(ctypes.sizeof(Attributes), None, len(given), (c_int32 * len(given))(*types),
                          (c_void_p * len(given))(*names), (c_void_p * len(given))(*values))

    def call(self, handler, given):
        self.given, self.memory = given, []
        if given.get("is_old"):
            self.api.size -= 8
        texts = {"program": "score", "mask_mod": "", "sink": "", "params": "", "layout": "", "lengths": "",
                 "scale": 0.125, **given.get("attributes", {})}
        call = Call(size=ctypes.sizeof(Call), api=ctypes.addressof(self.api), stage=EXECUTE,
                    arguments=self.values(given["arguments"]), results=self.values(given["results"]),
                    attributes=self.attributes(sorted(texts.items())))
        error = handler(byref(call))
        return {"error": self.errors[error - 1] if error else "", "memory": self.memory}

    def traits(self, handler):
        metadata = Metadata(size=ctypes.sizeof(Metadata), traits=99)
        extension = Extension(ctypes.sizeof(Extension), EXTENSION_OF_METADATA, None, ctypes.addressof(metadata))
        call = Call(size=ctypes.sizeof(Call), extensions=ctypes.addressof(extension))
        assert not handler(byref(call))
        return {"traits": metadata.traits, "version": [metadata.version.major, metadata.version.minor]}


def main():
    import flexc
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = c_void_p, [ctypes.py_object, c_char_p]
    function = ctypes.CFUNCTYPE(c_void_p, POINTER(Call))
    handlers = {(name, platform): function(pointer(capsule, b"xla._CUSTOM_CALL_TARGET"))
                for name, platform, capsule in flexc._core.jax_handlers()}
    recorder = ctypes.CDLL(str(RECORDER))
    sink = ctypes.CFUNCTYPE(None, c_void_p, c_char_p)
    results = []
    for given in json.load(sys.stdin):
        handler = handlers[given["name"], "CUDA"]
        xla, texts = Xla(), []
        result = xla.traits(handler) if given.get("asks_traits") else xla.call(handler, given)
        recorder.flexc_take_recorded(sink(lambda _, text: texts.append(text.decode())), None)
        results.append({**result, "recorded": texts[0].splitlines()})
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
