"""The messages of TensorFlow Serving and TensorFlow, without TensorFlow.

The pb2 modules of `tensorflow-serving-api` import `tensorflow.core...pb2`, and Python runs
`tensorflow/__init__.py` (5 s, 600 MB) before it imports a submodule. So the imports below run
under a shell: an empty package called `tensorflow` with the path of the real package. Afterwards the
shell and every `tensorflow.*` entry imported with it are removed from `sys.modules`, so that a later
`import tensorflow` runs as usual. Both imports get the same message classes, because protobuf keeps
one class for each message of its descriptor pool.

If TensorFlow is imported already, its own modules are used and nothing is removed.
"""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from serving.base.tensorflow_package import mismatch


def _is_tensorflow(module_name: str) -> bool:
    return module_name == "tensorflow" or module_name.startswith("tensorflow.")


@contextmanager
def _tensorflow_shell() -> Iterator[None]:
    """Lets `tensorflow.*` submodules be imported without `tensorflow/__init__.py`.

    Not thread-safe: a thread that imports TensorFlow meanwhile would get the shell. So import this
    module before starting threads.
    """
    if "tensorflow" in sys.modules:
        yield
        return
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError(mismatch(None))
    shell = ModuleType("tensorflow")
    shell.__path__ = list(spec.submodule_search_locations)
    sys.modules["tensorflow"] = shell
    try:
        yield
    finally:
        for name in [name for name in sys.modules if _is_tensorflow(name)]:
            del sys.modules[name]


with _tensorflow_shell():
    from tensorflow.core.example import example_pb2, feature_pb2
    from tensorflow.core.framework import tensor_pb2, tensor_shape_pb2, types_pb2
    from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2, tensor_bundle_pb2
    from tensorflow_serving.apis import (
        # Some of these are not used in Millpond. But the stubs import them, and an import after this
        # block would import TensorFlow.
        classification_pb2,
        get_model_metadata_pb2,
        get_model_status_pb2,
        inference_pb2,
        input_pb2,
        model_management_pb2,
        model_pb2,
        model_service_pb2,
        predict_pb2,
        prediction_log_pb2,
        prediction_service_pb2,
        regression_pb2,
        session_service_pb2,
    )
    from tensorflow_serving.config import (
        file_system_storage_path_source_pb2,
        model_server_config_pb2,
    )

__all__ = [
    "classification_pb2",
    "example_pb2",
    "feature_pb2",
    "file_system_storage_path_source_pb2",
    "get_model_metadata_pb2",
    "get_model_status_pb2",
    "inference_pb2",
    "input_pb2",
    "meta_graph_pb2",
    "model_management_pb2",
    "model_pb2",
    "model_server_config_pb2",
    "model_service_pb2",
    "predict_pb2",
    "prediction_log_pb2",
    "prediction_service_pb2",
    "regression_pb2",
    "saved_model_pb2",
    "session_service_pb2",
    "tensor_bundle_pb2",
    "tensor_pb2",
    "tensor_shape_pb2",
    "types_pb2",
]
