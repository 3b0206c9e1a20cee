"""The parts that a version lacks: ops, kernels for the CPU, values of variables and tables. Pure.

Each message names what is missing, and the remedy.
"""

from collections.abc import Sequence

from serving.data_plane.loads import MissingKernel

OPS_SHOWN_MAX = 10
"""The most ops that an error lists."""

RESOURCES_SHOWN_MAX = 5
"""The most variables or tables that an error lists."""

DEFAULT_SIGNATURE = "serving_default"

_PYTHON_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
_GPU_OPS = ("Cudnn", "Nccl")


def _listed(texts: Sequence[str], shown_max: int) -> str:
    """The first of the texts for a message, and the count of the others."""
    shown = ", ".join(texts[:shown_max])
    more = len(texts) - shown_max
    return f"{shown} and {more} more" if more > 0 else shown


def _listed_names(names: Sequence[str]) -> str:
    return _listed([repr(name) for name in names], RESOURCES_SHOWN_MAX)


def missing_ops_message(ops: Sequence[str]) -> str:
    """An error that names the first of the ops, with the remedy."""
    subject = f"op {ops[0]} is" if len(ops) == 1 else f"ops {_listed(ops, OPS_SHOWN_MAX)} are"
    return (
        f"{subject} not registered: start the server with --op_package=NAME for a pip package of ops, "
        "or with --op_library=PATH for one library; docs/install.md#custom-ops lists packages by their ops"
    )


def unset_variables_message(names: Sequence[str]) -> str:
    """The error for a model whose requests read variables without a value."""
    return (
        f"its signatures read {len(names)} variables that neither the checkpoint nor an init op "
        f"gives a value: {_listed_names(names)}; export the model with model.export(path) or "
        "tf.keras.export.ExportArchive, not with tf.saved_model.save"
    )


def unset_tables_message(names: Sequence[str]) -> str:
    """The error for a model whose requests look keys up in tables that nothing fills."""
    return (
        f"its signatures look keys up in {len(names)} tables that no init op fills: {_listed_names(names)}; "
        "make each table an attribute of the module that tf.saved_model.save gets, or, with "
        "TensorFlow 1, pass tf.compat.v1.tables_initializer() as the init op"
    )


def missing_kernels_fault(certain: Sequence[MissingKernel], signature_names: Sequence[str]) -> str:
    """Says why a version must not serve whose requests need the kernels in `certain`; "" if it may.

    It must not if its init op fails, if requests that name no signature fail, or if each signature's
    do.
    """
    broken = {row.signature for row in certain}
    names = set(signature_names)
    default_is_broken = DEFAULT_SIGNATURE in broken
    all_are_broken = DEFAULT_SIGNATURE not in names and bool(names) and names <= broken
    if not ("" in broken or default_is_broken or all_are_broken):
        return ""
    return missing_kernels_message(certain)


def has_failed_for_kernel(row: MissingKernel, error: str) -> bool:
    """True if a run failed with `error` because `row` has no kernel."""
    return f"No OpKernel was registered to support Op '{row.op}'" in error


def missing_kernels_message(missing: Sequence[MissingKernel]) -> str:
    """A text that names the ops, their places, and the remedy."""
    places: dict[str, str] = {}
    for row in missing:
        places.setdefault(row.op, _place(row))
    ops = [f"{op} ({place})" for op, place in places.items()]
    subject = f"op {ops[0]} has" if len(ops) == 1 else f"ops {_listed(ops, OPS_SHOWN_MAX)} have"
    return f"{subject} no kernel for the CPU: {_remedy(list(places))}"


def _place(row: MissingKernel) -> str:
    owner = f"signature {row.signature!r}" if row.signature else "the init op"
    function = f" in function {row.function!r}" if row.function else ""
    return f"node {row.node!r}{function}, run by {owner}"


def _remedy(ops: Sequence[str]) -> str:
    remedies = []
    if any(op in _PYTHON_OPS for op in ops):
        remedies.append(
            "tf.py_function and tf.numpy_function run Python code, which a SavedModel does not hold; "
            "write that part with TensorFlow's ops"
        )
    if any(op.startswith(_GPU_OPS) for op in ops):
        remedies.append(
            "ops of cuDNN and NCCL run on a GPU only; export the model on a machine without one, or "
            "with use_cudnn=False"
        )
    if any(op not in _PYTHON_OPS and not op.startswith(_GPU_OPS) for op in ops):
        remedies.append(
            "export the model without the op, or with another dtype, or load a library of kernels "
            "with --op_library=PATH"
        )
    return "; ".join(remedies)
