"""Makes tf.Example messages from plain Python and numpy values. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from serving.base.errors import InvalidArgument
from serving.base.protos import example_pb2, feature_pb2, input_pb2
from serving.base.tensor_proto import as_array

Features = Mapping[str, Any]
"""One example by feature name.

A value is text, bytes or a number, or a list or array (of any shape) of values of one of these kinds.
"""

_INT64_MAX = 2**63 - 1


def examples_input(examples: Sequence[Features], context: Features | None = None) -> Any:
    """Makes the `Input` of a classify or regress request.

    `context` has the features that all examples share, and is sent once. Raises InvalidArgument, which
    names the feature, for a value that a tf.Example cannot hold.
    """
    messages = [example(features) for features in examples]
    if context is None:
        return input_pb2.Input(example_list=input_pb2.ExampleList(examples=messages))
    with_context = input_pb2.ExampleListWithContext(examples=messages, context=example(context))
    return input_pb2.Input(example_list_with_context=with_context)


def example(features: Features) -> Any:
    """Makes a tf.Example. Whole numbers and booleans become int64, other numbers float32."""
    message = example_pb2.Example()
    for name, values in features.items():
        message.features.feature[name].CopyFrom(_feature(name, values))
    return message


def _feature(name: str, values: Any) -> Any:
    array = _array(name, values)
    if array.dtype.kind in "USO":
        return _bytes_feature(name, array.ravel().tolist())
    if array.size == 0:
        return feature_pb2.Feature()
    if array.dtype.kind in "biu":
        return _int64_feature(name, array.ravel())
    # The dtypes of ml_dtypes, such as bfloat16, are of numpy's kind "V".
    if array.dtype.kind in "fV" and np.can_cast(array.dtype, np.float64):
        floats = array.ravel().astype(np.float64).tolist()
        return feature_pb2.Feature(float_list=feature_pb2.FloatList(value=floats))
    raise InvalidArgument(
        f"feature {name!r}: a tf.Example cannot hold {array.dtype}; "
        "it holds bytes, int64 and float32"
    )


def _array(name: str, values: Any) -> Any:
    try:
        return as_array(values)
    except ValueError as error:
        raise InvalidArgument(f"feature {name!r}: its lists differ in length: {error}") from error


def _int64_feature(name: str, flat: Any) -> Any:
    if int(flat.max()) > _INT64_MAX:
        raise InvalidArgument(f"feature {name!r}: {flat.max()} does not fit int64")
    numbers = flat.astype(np.int64).tolist()
    return feature_pb2.Feature(int64_list=feature_pb2.Int64List(value=numbers))


def _bytes_feature(name: str, values: Sequence[Any]) -> Any:
    encoded = [value.encode() if isinstance(value, str) else value for value in values]
    for value in encoded:
        if not isinstance(value, bytes):
            raise InvalidArgument(
                f"feature {name!r}: {value!r} is neither text nor bytes, nor are all its values "
                "numbers; a feature's values are of one kind"
            )
    return feature_pb2.Feature(bytes_list=feature_pb2.BytesList(value=encoded))
