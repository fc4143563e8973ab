"""The C interface of the library through ctypes, and what else the comparisons with other libraries share."""
import ctypes
import math
import os
import re
import subprocess

DTYPES = {"f64": 0, "f32": 1, "bf16": 2, "f16": 3, "i32": 5}


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_int32), ("rank", ctypes.c_int32),
                ("sizes", ctypes.c_int64 * 4), ("strides", ctypes.c_int64 * 4)]


def tensor_names():
    """Members of rowmax_tensors from q to dslopes, in the header's order."""
    header = os.path.join(os.path.dirname(__file__), "..", "include", "rowmax", "c_api.h")
    with open(header, encoding="utf-8") as f:
        body = re.search(r"typedef struct rowmax_tensors \{(.*?)\} rowmax_tensors;", f.read(), re.S)
    names = []
    for members in re.findall(r"rowmax_tensor ([a-z_0-9, ]+);", body.group(1)):
        names += [name.strip() for name in members.split(",")]
    return names


class Tensors(ctypes.Structure):
    _fields_ = ([("struct_size", ctypes.c_size_t)] + [(name, Tensor) for name in tensor_names()] +
                [("dropout_seed", ctypes.c_uint64), ("dropout_offset", ctypes.c_uint64),
                 ("dropout_state", ctypes.c_void_p), ("dropout_row_base", ctypes.c_int64),
                 ("dropout_col_base", ctypes.c_int64)])


class ExecuteOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("threads", ctypes.c_int32),
                ("reserved", ctypes.c_int32), ("parallel_for", ctypes.c_void_p),
                ("parallel_context", ctypes.c_void_p), ("stream", ctypes.c_void_p),
                ("sm_margin", ctypes.c_int32), ("reserved2", ctypes.c_int32)]


class PlanOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("force_kernel", ctypes.c_char_p),
                ("max_workspace", ctypes.c_int64), ("reserved", ctypes.c_int32 * 2),
                ("device", ctypes.c_char_p)]


def view(tensor, order, dtype):
    """A torch tensor as a rowmax_tensor with its axes in `order`."""
    out = Tensor(tensor.data_ptr(), DTYPES[dtype], len(order))
    for i, axis in enumerate(order):
        out.sizes[i] = tensor.shape[axis]
        out.strides[i] = tensor.stride(axis)
    return out


def host_memory(size):
    """(keeps it alive, address at a multiple of 64) of host memory."""
    buffer = ctypes.create_string_buffer(size + 64)
    return buffer, (ctypes.addressof(buffer) + 63) // 64 * 64


class Call:
    """One plan with its tensors and workspace, ready to run again and again."""

    def __init__(self, library, text, tensors, threads=0, device="cpu", kernel=None,
                 allocate=host_memory):
        self.library = library
        self.message = ctypes.create_string_buffer(4096)
        # rowmax_problem, opaque here: a size larger than the library's is accepted when the rest is 0
        problem = ctypes.create_string_buffer(4096)
        ctypes.c_size_t.from_buffer(problem).value = 4096
        self._check(library.rowmax_problem_parse(text.encode(), problem, self.message, 4096))
        options = PlanOptions(ctypes.sizeof(PlanOptions), kernel.encode() if kernel else None)
        options.device = device.encode()
        self.plan = ctypes.c_void_p()
        self._check(library.rowmax_plan_create(problem, ctypes.byref(options),
                                               ctypes.byref(self.plan), self.message, 4096))
        self.bytes = library.rowmax_plan_workspace_bytes(self.plan, threads)
        self.buffer, address = allocate(self.bytes)
        self.workspace = ctypes.c_void_p(address)
        self.tensors = Tensors(struct_size=ctypes.sizeof(Tensors), **tensors)
        self.options = ExecuteOptions(ctypes.sizeof(ExecuteOptions), threads)
        self.kernel = library.rowmax_plan_kernel(self.plan).decode()

    def _check(self, status):
        if status != 0:
            raise RuntimeError(self.message.value.decode())

    def explain(self):
        text = ctypes.create_string_buffer(1 << 16)
        self._check(self.library.rowmax_plan_explain(self.plan, text, len(text), None, self.message,
                                                     4096))
        return text.value.decode()

    def __call__(self):
        self._check(self.library.rowmax_execute(self.plan, ctypes.byref(self.tensors),
                                                self.workspace, self.bytes,
                                                ctypes.byref(self.options), self.message, 4096))


def load_library(build):
    library = ctypes.CDLL(os.path.join(build, "src", "librowmax.so"))
    library.rowmax_plan_workspace_bytes.restype = ctypes.c_size_t
    library.rowmax_plan_workspace_bytes.argtypes = [ctypes.c_void_p, ctypes.c_int32]
    library.rowmax_plan_kernel.restype = ctypes.c_char_p
    library.rowmax_plan_kernel.argtypes = [ctypes.c_void_p]
    library.rowmax_plan_create.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
                                           ctypes.c_void_p, ctypes.c_size_t]
    library.rowmax_problem_parse.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p,
                                             ctypes.c_size_t]
    library.rowmax_execute.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
                                       ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p,
                                       ctypes.c_size_t]
    library.rowmax_plan_explain.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
                                            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    library.rowmax_version.restype = ctypes.c_char_p
    return library


def commit(folder=os.path.dirname(os.path.abspath(__file__))):
    """Short hash of the git tree that holds `folder`, with "-dirty" when its tracked files differ; None
    outside git."""
    command = ["git", "-C", folder, "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # no git
        return None
    return result.stdout.strip() or None if result.returncode == 0 else None


def visible_pairs(sq, sk, causal):
    """(row, key) pairs of one head, bottom-right causal or full."""
    if not causal:
        return sq * sk
    rows = min(sq, sk)  # those that see a key; each one more than the row before it
    return rows * (sk - rows) + rows * (rows + 1) // 2


def percentile(values, share):
    """The nearest rank, as `quantile` of apps/rowmax/runner.h: the least of up to ten values for 0.1."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
