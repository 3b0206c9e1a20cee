#pragma once

#include <string>
#include <vector>

#include "native/base/status.h"

namespace millpond::tf {

// Checks that `directory` holds a complete SavedModel. TensorFlow's own C++ loader does not check
// this: it loads a directory without variables/ "successfully" and fails every request later.
//
// A SavedModel is complete if saved_model.pb or saved_model.pbtxt parses. If a graph in it has
// variables, variables/variables.index must be readable too, and each shard must be at least as
// long as the index requires. Reads the graph and the index, not the shards.
//
// Returns the assets that a graph names and that are missing, as paths below `directory`. A copy
// under way may still bring them. A graph that reads none of these assets loads without them.
// Errors:
// - FAILED_PRECONDITION: a file is missing or short; a copy may still be under way.
// - DATA_LOSS: a file does not parse, which a copy under way can cause as well.
// - any other code: a file could not be read, by a fault of the disk, of rights or of this process.
base::StatusOr<std::vector<std::string>> CheckSavedModel(const std::string& directory);

}  // namespace millpond::tf
