#pragma once

#include <map>
#include <string>
#include <utility>

namespace tensorflow {
class MetaGraphDef;
}  // namespace tensorflow

namespace millpond::tf {

// A tensor that a restore reads: its name, and its shape and slice as RestoreV2 takes them.
using RestoredTensor = std::pair<std::string, std::string>;

// Returns the variables that a restore gives a value, by the tensor whose memory becomes the value.
//
// Has only pairs that the graph shows: the tensor goes to one AssignVariableOp and to nothing else,
// except for Identity nodes between them. The variable has a name, gets one value, and no other
// tensor. `restore_op` is the name of the saver's restore op.
std::map<RestoredTensor, std::string> FindRestoreTargets(const tensorflow::MetaGraphDef& meta_graph,
                                                         const std::string& restore_op);

}  // namespace millpond::tf
