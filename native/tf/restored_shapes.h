#pragma once

#include <map>
#include <string>

#include "native/base/status.h"
#include "native/tf/checkpoint_index.h"
#include "native/tf/restore_targets.h"

namespace tensorflow {
class MetaGraphDef;
}  // namespace tensorflow

namespace millpond::tf {

// Returns FAILED_PRECONDITION if a restore gives a variable another shape than its VarHandleOp
// says.
//
// AssignVariableOp takes any shape, and ResourceScatterUpdate does not compare the shapes of its
// rows and its table, so it would read memory behind them.
base::Status CheckRestoredShapes(const tensorflow::MetaGraphDef& meta_graph,
                                 const std::map<RestoredTensor, std::string>& targets,
                                 const CheckpointIndex& index);

// Returns the name of the entry that the restore reads for a tensor; "" if there is none.
std::string EntryNameOf(const RestoredTensor& tensor);

}  // namespace millpond::tf
