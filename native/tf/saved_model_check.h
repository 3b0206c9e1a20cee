#pragma once

#include <string>
#include <vector>

#include "native/base/status.h"

namespace millpond::tf {

// Says whether `directory` holds a whole SavedModel, which TensorFlow's own C++ loader does not: it
// loads one without variables/ "successfully" and fails every request later.
//
// Whole: saved_model.pb or saved_model.pbtxt parses, and, if a graph in it has variables,
// variables/variables.index is readable and each shard is at least as long as the index says.
// Reads the graph and the index, not the shards.
//
// Returns the assets that a graph names and that are missing, as paths below `directory`. A copy
// may still bring them; a graph that reads none of them loads without them.
// FAILED_PRECONDITION: something is missing or short, a copy may still be under way.
// DATA_LOSS: a file does not parse (which a copy under way can cause as well).
base::StatusOr<std::vector<std::string>> CheckSavedModel(const std::string& directory);

}  // namespace millpond::tf
