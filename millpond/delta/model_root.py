"""The object that a base is saved from: the model, its tables, and the rows that a delta changes."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from serving.base.errors import InvalidArgument

DEFAULT_SIGNATURE = "serving_default"

Variable = Any
"""A `tf.Variable`, or a variable of Keras."""


class ApplyRows(tf.saved_model.experimental.TrackableResource):  # type: ignore[misc]
    """Writes the changed rows into the tables once the variables are restored, in the SavedModel's init op.

    TensorFlow runs `_initialize` of each resource then. The resource itself is an empty hash table, which
    nothing reads.
    """

    def __init__(
        self, tables: Sequence[Variable], ids: Sequence[Variable], rows: Sequence[Variable]
    ) -> None:
        self._changes = list(zip(tables, ids, rows, strict=True))
        super().__init__()

    def _create_resource(self) -> Any:
        return tf.raw_ops.MutableHashTableV2(
            key_dtype=tf.int64, value_dtype=tf.int64, shared_name="millpond_delta"
        )

    def _initialize(self) -> None:
        for table, ids, rows in self._changes:
            tf.raw_ops.ResourceScatterUpdate(
                resource=table.handle, indices=ids.read_value(), updates=rows.read_value()
            )


def tracked_model(model: Any) -> tf.Module:
    """A module with all of the model that is saved, below the names that its variables have in a base.

    A Keras model is tracked by its variables and lookup tables, as `model.export` does, because its
    optimizer would be saved with it. Raises InvalidArgument if it is no model that TensorFlow can save.
    """
    root = tf.Module()
    if is_keras_model(model):
        _refuse_other_backend()
        root.weights = [value_of(variable) for variable in model.variables]
        root.resources = _resources_of(model)
    elif isinstance(model, tf.Module):
        put_below(root, model)
    else:
        raise InvalidArgument(
            f"a {type(model).__name__} cannot be exported: give a Keras 3 model or a tf.Module"
        )
    return root


def put_below(root: tf.Module, model: Any) -> None:
    """Makes `model` a part of `root`, which has its functions too, as if the model itself were saved.

    So `tf.saved_model.load(path).serve(…)` is there in a delta if it is in the model. A function with a name of
    `object_graph.CHANGES`, or of an attribute of every tf.Module, is not.
    """
    root.model = model
    function = tf.types.experimental.GenericFunction
    for name in dir(model):
        if isinstance(inspect.getattr_static(model, name), function) and not hasattr(root, name):
            setattr(root, name, getattr(model, name))


def value_of(variable: Variable) -> Any:
    """The `tf.Variable` of a Keras variable, or the variable itself."""
    keras_value = getattr(variable, "value", None)
    return keras_value if isinstance(keras_value, tf.Variable) else variable


def name_of(variable: Variable) -> str:
    """The name of a variable for people: of Keras its path, like "embedding/embeddings"."""
    if not hasattr(variable, "handle"):
        return f"a {type(variable).__name__}"
    return str(getattr(variable, "path", None) or variable.name.partition(":")[0])


def add_changes(root: tf.Module, tables: Sequence[Variable]) -> None:
    """Adds to each table the variables `ids` and `rows`, which are empty, and what applies them."""
    root.tables = list(tables)
    values = [value_of(table) for table in tables]
    root.ids = [_empty_variable(tf.int64, []) for _ in tables]
    root.rows = [_empty_variable(value.dtype, value.shape[1:]) for value in values]
    root.delta = ApplyRows(values, root.ids, root.rows)


def _empty_variable(dtype: Any, row_shape: Sequence[int]) -> tf.Variable:
    value = tf.zeros([0, *row_shape], dtype)
    return tf.Variable(value, shape=[None, *row_shape], trainable=False)


def signatures_of(
    model: Any, root: tf.Module, given: Any, input_signature: Any
) -> Mapping[str, Any]:
    """The signatures to save. For a Keras model without given ones also puts `root.serve` in place.

    Raises InvalidArgument if the model alone does not say what its inputs are.
    """
    if given is not None:
        return given if isinstance(given, Mapping) else {DEFAULT_SIGNATURE: given}
    if is_keras_model(model):
        specs = input_signature if input_signature is not None else _keras_input_signature(model)
        root.serve = tf.function(model.__call__, input_signature=specs, autograph=False)
        return {"serve": root.serve, DEFAULT_SIGNATURE: root.serve}
    call = getattr(model, "__call__", None)  # noqa: B004 (whether it is a tf.function counts)
    if not isinstance(call, tf.types.experimental.GenericFunction):
        raise InvalidArgument(
            "give signatures=…, as for tf.saved_model.save: the module's __call__ is no tf.function"
        )
    return {DEFAULT_SIGNATURE: call}


def is_keras_model(model: Any) -> bool:
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(model, keras.Model)


def _refuse_other_backend() -> None:
    backend = sys.modules["keras"].backend.backend()
    if backend != "tensorflow":
        raise InvalidArgument(
            f"Keras runs on {backend}, whose variables are not TensorFlow's: "
            "set KERAS_BACKEND=tensorflow before the import of keras"
        )


def _keras_input_signature(model: Any) -> list[Any]:
    keras = sys.modules["keras"]
    if isinstance(model, keras.Sequential):
        return [_tensor_spec(item) for item in model.inputs]
    if getattr(model, "inputs", None) is not None:
        return [keras.tree.map_structure(_tensor_spec, model.input)]
    raise InvalidArgument(
        "give input_signature=[tf.TensorSpec(…)]: the inputs of a subclassed model are not known"
    )


def _tensor_spec(item: Any) -> tf.TensorSpec:
    return tf.TensorSpec([None, *item.shape[1:]], item.dtype, name=item.name)


def _resources_of(model: Any) -> list[Any]:
    """The lookup tables of a model, which its variables leave out."""
    resource = tf.saved_model.experimental.TrackableResource
    return [
        item for item in tf.train.TrackableView(model).descendants() if isinstance(item, resource)
    ]
