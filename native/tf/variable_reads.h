#pragma once

#include <set>
#include <string>

namespace tensorflow {
class MetaGraphDef;
class Session;
}  // namespace tensorflow

namespace millpond::tf {

// A variable as a session's resource manager files it.
struct VariableKey {
  std::string container;
  std::string name;

  bool operator<(const VariableKey& other) const {
    return container != other.container ? container < other.container : name < other.name;
  }
};

// Returns the variables that each request on some signature reads, by the VarHandleOps of the
// graph.
//
// Walks back from the signatures' outputs, through the functions that they call, along what is
// needed only: an argument that a function does not use is not followed. Branches (If, Case,
// Switch) are not followed either, as a request may never take them. So on doubt a variable is left
// out.
std::set<VariableKey> ReadVariables(const tensorflow::MetaGraphDef& meta_graph);

// Returns the names of those of `variables` that no device of `session` holds a value for.
std::set<std::string> VariablesWithoutValue(const std::set<VariableKey>& variables,
                                            tensorflow::Session* session);

}  // namespace millpond::tf
