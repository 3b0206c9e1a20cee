#pragma once

#include <string>

#include "native/base/status.h"

namespace millpond::tf {

// Says whether `directory` holds a whole SavedModel, which TensorFlow's own C++ loader does not: it
// loads one without variables/ "successfully" and fails every request later (design.md, seam 9).
//
// Whole: saved_model.pb or saved_model.pbtxt parses, each asset that it names is there, and, where
// a graph in it has variables, variables/variables.index is readable and each shard is at least as
// long as the index says. Reads the graph and the index, not the shards.
// FAILED_PRECONDITION: something is missing or short, a copy may still be under way.
// DATA_LOSS: a file does not parse (which a copy under way can cause as well).
base::Status CheckSavedModel(const std::string& directory);

}  // namespace millpond::tf
