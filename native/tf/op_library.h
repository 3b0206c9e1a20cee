#pragma once

#include <string>
#include <vector>

#include "native/base/status.h"

namespace tensorflow {
class GraphDef;
}  // namespace tensorflow

namespace millpond::tf {

// Loads a shared library that registers ops and their kernels, for the life of the process. Returns
// the sorted names of the ops that it registered; an empty list if it registered only kernels. A
// second call does nothing and returns the same. Call it after InitializeRuntime, and before the
// first graph with such an op.
//
// Returns NOT_FOUND if the file does not exist. Returns FAILED_PRECONDITION with the dynamic
// linker's message if the linker refuses the file. An undefined symbol shows that the library was
// built for another TensorFlow.
base::StatusOr<std::vector<std::string>> LoadOpLibrary(const std::string& path);

// Returns the ops that the graph may run and that nothing in this process registers, sorted, each
// once. Ignores functions that no node of the graph calls, because a part that was exported only
// for training needs no ops here.
std::vector<std::string> MissingOps(const tensorflow::GraphDef& graph);

}  // namespace millpond::tf
