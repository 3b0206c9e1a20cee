#pragma once

#include <string>
#include <vector>

#include "native/base/status.h"

namespace tensorflow {
class GraphDef;
}  // namespace tensorflow

namespace millpond::tf {

// Loads a shared library that registers ops and their kernels, for the life of the process, and
// returns the names of the ops that it brought, sorted; none where it brought kernels only. A
// second time it does nothing and returns the same. After InitializeRuntime, before the first graph
// that has such an op.
//
// NOT_FOUND: there is no such file. FAILED_PRECONDITION: the dynamic linker refuses it, with its
// words; a symbol that is not defined says that it was built for another TensorFlow.
base::StatusOr<std::vector<std::string>> LoadOpLibrary(const std::string& path);

// The ops that the graph may run and that nothing in this process registers, sorted, each once.
// Functions that no node of the graph leads to are left aside: what was exported for training
// beside what is served needs nothing.
std::vector<std::string> MissingOps(const tensorflow::GraphDef& graph);

}  // namespace millpond::tf
